"""Part `kernels`: the plugins' Triton kernels against the NumPy reference, and beside PyTorch's own attention."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from spec_trt.plugins.commit_rows.launch import commit_rows
from spec_trt.plugins.tree_attention.launch import tree_attention
from spec_trt.plugins.tree_attention.reference import tree_attention as reference
from tests.gpu_check.report import Outcome
from tests.gpu_check.timing import copy_bandwidth, graph_ms, sets_needed
from tests.plugins.operands import VARIANTS, inputs_of, make_operands

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
BOUNDS = {"fp16": 3e-3, "bf16": 2e-2}
"""Largest ||out - reference|| / ||reference||; the operands are those of the type, the reference is in float32."""

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
PASTS, NODES, BATCHES = (512, 4096, 32768), (1, 8, 32, 64), (1, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One size that is timed."""

    past: int
    nodes: int
    batch: int

    @property
    def nbytes(self) -> int:
        """What must be moved in half precision: keys and values once, queries and outputs."""
        keys = 2 * self.batch * KV_HEADS * (self.past + self.nodes) * HEAD_DIM
        return 2 * (keys + 2 * self.batch * HEADS * self.nodes * HEAD_DIM)


def cases() -> Iterator[Case]:
    """The sizes of the check, the cheap ones first."""
    for past in PASTS:
        for batch in BATCHES:
            for nodes in NODES:
                yield Case(past=past, nodes=nodes, batch=batch)


def relative_error(out: Any, expected: Any) -> float:
    """||out - expected|| / ||expected||; infinite where there is a NaN."""
    error = float(np.linalg.norm(out - expected) / np.linalg.norm(expected))
    return error if np.isfinite(error) else float("inf")


def run_kernels(*, seconds: float) -> Outcome:
    """Compare, then time.

    Args:
        seconds: When to stop adding timings; compiling FlexAttention takes half of it at the most.
    """
    deadline, outcome = time.monotonic() + seconds, Outcome()
    _compare_attention(outcome)
    _compare_commit(outcome)
    _time(outcome, deadline)
    return outcome


def _compare_attention(outcome: Outcome) -> None:
    errors: dict[str, float] = {}
    shapes = [(1, 1, 4, 1, 0, 700, 64), (2, 2, 4, 17, 9, 333, 80), (3, 2, 3, 5, 4, 130, 96),
              (1, 8, 4, 64, 20, 900, 128), (2, 1, 2, 8, 0, 64, 256)]  # fmt: skip
    for name, dtype in DTYPES.items():
        for variant, attributes in VARIANTS.items():
            for seed, shape in enumerate(shapes):
                error = _attention_error(make_operands(seed, *shape), attributes, dtype)
                errors[name] = max(errors.get(name, 0.0), error)
                outcome.expect(
                    error <= BOUNDS[name], f"TreeAttention in {name}, {variant}, {shape}: off by {error:.3g}"
                )
    outcome.figures["attention_error"] = errors
    outcome.add_table(
        ["TreeAttention", "worst error", "bound"], [[name, errors[name], BOUNDS[name]] for name in errors]
    )


def _attention_error(operands: Mapping[str, Any], attributes: dict[str, Any], dtype: torch.dtype) -> float:
    """The kernel's output against the reference on the same, rounded operands."""
    given = inputs_of(dict(operands), attributes)
    tensors: dict[str, Any] = {name: torch.from_numpy(np.asarray(array)).cuda() for name, array in given.items()}
    tensors = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    rounded: dict[str, Any] = {
        name: (tensor.float() if tensor.is_floating_point() else tensor).cpu().numpy()
        for name, tensor in tensors.items()
    }
    out = tree_attention(**tensors, **attributes)
    return relative_error(out.float().cpu().numpy(), reference(**rounded, **attributes))


def _compare_commit(outcome: Outcome) -> None:
    generator = torch.Generator().manual_seed(0)
    for name, dtype in DTYPES.items():
        buffer = torch.randn(12, 3, 4, 50, 64, generator=generator).to(dtype).cuda()
        new_rows = torch.randn(12, 3, 4, 9, 64, generator=generator).to(dtype).cuda()
        paths = torch.tensor([[0, 2, 5], [0, 0, 0], [1, 8, 0]]).cuda()
        counts, lengths = torch.tensor([3, 0, 2]).cuda(), torch.tensor([0, 7, 48]).cuda()
        expected = buffer.clone()
        expected[:, 0, :, 0:3] = new_rows[:, 0][:, :, [0, 2, 5]]
        expected[:, 2, :, 48:50] = new_rows[:, 2][:, :, [1, 8]]
        commit_rows(buffer, new_rows, paths, counts, lengths)
        outcome.expect(torch.equal(buffer, expected), f"commit_rows in {name} wrote other rows than it was asked to")


def _time(outcome: Outcome, deadline: float) -> None:
    bandwidth = copy_bandwidth()
    outcome.figures |= {"copy_bytes_per_s": bandwidth, "timings": []}
    rows: list[list[Any]] = []
    flex_deadline = time.monotonic() + (deadline - time.monotonic()) / 2
    for case in cases():
        if time.monotonic() > deadline:
            outcome.notes.append(f"no time for {case} and larger ones")
            break
        figures = _time_case(case, with_flex=time.monotonic() < flex_deadline)
        figures["of_copy_bandwidth"] = case.nbytes / (figures["kernel_ms"] / 1e3) / bandwidth
        outcome.figures["timings"].append({"past": case.past, "nodes": case.nodes, "batch": case.batch, **figures})
        rows.append(
            [f"{case.past}/{case.nodes}/{case.batch}", figures["kernel_ms"], figures["of_copy_bandwidth"]]
            + [
                figures[peer] and figures[peer] / figures["kernel_ms"]
                for peer in ("sdpa_ms", "sdpa_repeated_ms", "flex_ms")
            ]
        )
    outcome.add_table(
        ["past/nodes/batch", "kernel ms", "of copy bandwidth", "SDPA, grouped", "SDPA, keys repeated", "FlexAttention"],
        rows,
    )
    outcome.notes.append(
        f"the peers' columns are their time over the kernel's; a copy moves {bandwidth / 1e9:,.0f} GB/s; the peers' "
        "keys lie side by side and, for SDPA's second column, are repeated per head, before the clock runs"
    )


def _time_case(case: Case, *, with_flex: bool) -> dict[str, Any]:
    """Milliseconds of the kernel and its peers, on the same operands, bf16 where the GPU has it."""
    cache = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 64 << 20)
    sets = [_Operands(case, seed) for seed in range(sets_needed(case.nbytes, cache))]
    figures: dict[str, Any] = {"kernel_ms": graph_ms([operands.run_kernel for operands in sets])}
    figures["sdpa_ms"] = _peer_ms([operands.run_sdpa for operands in sets])
    figures["sdpa_repeated_ms"] = _peer_ms([partial(operands.run_sdpa, *operands.repeated()) for operands in sets])
    figures["flex_ms"] = _peer_ms(_flex_works(sets)) if with_flex else None
    return figures


def _peer_ms(works: Sequence[Callable[[], object]]) -> float | None:
    """A peer's time; None where it can't run this at all."""
    try:
        return graph_ms(works) if works else None
    except (RuntimeError, ValueError):
        return None


class _Operands:
    """One set of operands, as the kernel and as its peers take them: keys of buffer and pass side by side."""

    def __init__(self, case: Case, seed: int) -> None:
        generator = torch.Generator("cuda").manual_seed(seed)
        dtype = torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16

        def draw(heads: int, count: int) -> Tensor:
            return torch.randn(case.batch, heads, count, HEAD_DIM, generator=generator, device="cuda", dtype=dtype)

        self.case = case
        self.query = draw(HEADS, case.nodes)
        self.keys, self.values = draw(KV_HEADS, case.past + case.nodes), draw(KV_HEADS, case.past + case.nodes)
        self.past_lens = torch.full((case.batch,), case.past, device="cuda")
        tree = torch.rand(case.batch, case.nodes, case.nodes, generator=generator, device="cuda") < 0.5
        self.tree_mask = tree | torch.eye(case.nodes, dtype=torch.bool, device="cuda")
        seen = torch.ones(case.batch, case.nodes, case.past, dtype=torch.bool, device="cuda")
        self.mask = torch.cat([seen, self.tree_mask], dim=2)[:, None]

    def run_kernel(self) -> Tensor:
        past = self.case.past
        return tree_attention(
            self.query,
            self.keys[:, :, past:],
            self.values[:, :, past:],
            self.keys[:, :, :past],
            self.values[:, :, :past],
            self.past_lens,
            self.tree_mask,
            scale=HEAD_DIM**-0.5,
        )

    def run_sdpa(self, keys: Tensor | None = None, values: Tensor | None = None) -> Tensor:
        grouped = keys is None or values is None
        return scaled_dot_product_attention(
            self.query,
            self.keys if keys is None else keys,
            self.values if values is None else values,
            attn_mask=self.mask,
            enable_gqa=grouped,
        )

    def repeated(self) -> tuple[Tensor, Tensor]:
        group = HEADS // KV_HEADS
        return self.keys.repeat_interleave(group, dim=1), self.values.repeat_interleave(group, dim=1)


def _flex_works(sets: list[_Operands]) -> list[Callable[[], object]]:
    """FlexAttention compiled for these sizes, all sets with the first one's mask; nothing where it can't be."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    case, tree_mask = sets[0].case, sets[0].tree_mask
    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, dynamic=False)

    def visible(batch: Tensor, _head: Tensor, node: Tensor, key: Tensor) -> Tensor:
        return (key < case.past) | tree_mask[batch, node, (key - case.past).clamp(min=0)]

    def run(operands: _Operands) -> object:
        return compiled(operands.query, operands.keys, operands.values, block_mask=block_mask, enable_gqa=True)

    try:
        block_mask = create_block_mask(visible, case.batch, None, case.nodes, case.past + case.nodes, device="cuda")
        run(sets[0])
    except Exception:  # a compiler's errors are of any type
        return []
    return [partial(run, operands) for operands in sets]
