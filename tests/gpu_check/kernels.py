"""Part `kernels`: the plugins' Triton kernels against their definitions."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from spec_trt.plugins.commit_rows.launch import commit_rows
from spec_trt.plugins.tree_attention.launch import tree_attention
from spec_trt.plugins.tree_attention.reference import tree_attention as reference
from tests.gpu_check.report import Outcome
from tests.plugins.operands import VARIANTS, inputs_of, make_operands

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
BOUNDS = {"fp16": 3e-3, "bf16": 2e-2}
"""Largest ||out - reference|| / ||reference||; the operands are those of the type, the reference is in float32."""

SHAPES = [
    (1, 1, 4, 1, 0, 700, 64),
    (2, 2, 4, 17, 9, 333, 80),
    (3, 2, 3, 5, 4, 130, 96),
    (1, 8, 4, 64, 20, 900, 128),
    (2, 1, 2, 8, 0, 64, 256),
]
"""Batch, kv_heads, query heads of each, nodes, tentative rows, past, head_dim."""


def run_kernels(outcome: Outcome, *, has_bf16: bool, stop: float) -> None:
    """Compare both kernels with their definitions.

    Args:
        outcome: Takes what is found.
        has_bf16: Whether the GPU can do bf16.
        stop: The time, by `time.monotonic`, from which on nothing more is begun.
    """
    device, dtypes = torch.device("cuda"), dict(DTYPES)
    if not has_bf16:
        del dtypes["bf16"]
        outcome.note("bf16 is left out: it needs compute capability 8.0")
    compare_commit(outcome, device, dtypes)
    compare_attention(outcome, SHAPES, device, dtypes, stop)


def compare_attention(
    outcome: Outcome,
    shapes: Sequence[tuple[int, ...]],
    device: torch.device,
    dtypes: Mapping[str, torch.dtype],
    stop: float = math.inf,
) -> None:
    """Every variant of the op in every type."""
    table = outcome.table(["TreeAttention", *dtypes])
    for seed, shape in enumerate(shapes):
        for variant, attributes in VARIANTS.items():
            if time.monotonic() > stop:
                outcome.note(f"no time for {shape}, {variant} and those after it")
                return
            operands = make_operands(seed, *shape)
            errors = {name: _attention_error(operands, attributes, dtype, device) for name, dtype in dtypes.items()}
            for name, error in errors.items():
                outcome.expect(
                    error <= BOUNDS[name], f"TreeAttention in {name}, {variant}, {shape}: off by {error:.3g}"
                )
            outcome.record(f"{variant}, {shape}", errors)
            table.add([f"{variant}, {shape}", *errors.values()])


def _attention_error(
    operands: Mapping[str, Any], attributes: dict[str, Any], dtype: torch.dtype, device: torch.device
) -> float:
    """The kernel's output against the reference on the same, rounded operands."""
    given = {name: torch.from_numpy(np.asarray(array)) for name, array in inputs_of(dict(operands), attributes).items()}
    tensors: dict[str, Any] = {
        name: tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype) for name, tensor in given.items()
    }
    rounded: dict[str, Any] = {
        name: (tensor.float() if tensor.is_floating_point() else tensor).cpu().numpy()
        for name, tensor in tensors.items()
    }
    out = tree_attention(**tensors, **attributes)
    return relative_error(out.float().cpu().numpy(), reference(**rounded, **attributes))


def relative_error(out: Any, expected: Any) -> float:
    """||out - expected|| / ||expected||; infinite where there is a NaN."""
    error = float(np.linalg.norm(out - expected) / np.linalg.norm(expected))
    return error if np.isfinite(error) else float("inf")


def compare_commit(outcome: Outcome, device: torch.device, dtypes: Mapping[str, torch.dtype]) -> None:
    """Rows of three sequences, one of them with none, in every type."""
    generator = torch.Generator().manual_seed(0)
    for name, dtype in dtypes.items():
        buffer = torch.randn(12, 3, 4, 50, 64, generator=generator).to(device, dtype)
        new_rows = torch.randn(12, 3, 4, 9, 64, generator=generator).to(device, dtype)
        paths = torch.tensor([[0, 2, 5], [0, 0, 0], [1, 8, 0]], device=device)
        counts, lengths = torch.tensor([3, 0, 2], device=device), torch.tensor([0, 7, 48], device=device)
        expected = buffer.clone()
        expected[:, 0, :, 0:3] = new_rows[:, 0][:, :, [0, 2, 5]]
        expected[:, 2, :, 48:50] = new_rows[:, 2][:, :, [1, 8]]
        commit_rows(buffer, new_rows, paths, counts, lengths)
        same = torch.equal(buffer, expected)
        outcome.expect(same, f"commit_rows in {name} wrote other rows than it was asked to")
        outcome.record(f"commit_rows, {name}", same)
