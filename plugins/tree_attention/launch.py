"""Starting the kernels: on PyTorch tensors, or on the addresses that TensorRT hands to the plugin."""

import math
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from spec_trt.errors import BackendError
from spec_trt.plugins.kernel_tensor import KernelTensor
from spec_trt.plugins.tree_attention.support import Attributes, refuse_capability, refuse_dtype, refuse_sizes
from spec_trt.plugins.tree_attention.tile_sizes import (
    TileSizes,
    combine_splits,
    padded_head_dim,
    row_tiles,
    split_count,
    tile_sizes,
)
from spec_trt.plugins.triton_gpu import Gpu, find_gpu, import_kernel, start_kernel

__all__ = [
    "DTYPE_NAMES",
    "LaunchPlan",
    "Operands",
    "attention_constants",
    "combine_constants",
    "launch",
    "plan_launch",
    "score_factors",
    "tree_attention",
]

DTYPE_NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}

_KERNEL = "spec_trt.plugins.tree_attention.kernel"
_COMBINE_WARPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """The op's inputs, shaped as in `spec_trt.plugins.tree_attention.reference`; the mask as uint8."""

    query: KernelTensor
    key: KernelTensor
    value: KernelTensor
    past_key: KernelTensor
    past_value: KernelTensor
    past_lens: KernelTensor
    tree_mask: KernelTensor
    positions: KernelTensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """How one pass is cut up.

    Attributes:
        sizes: One program's tile.
        tiles: Row tiles per key head.
        splits: Programs that share the keys of one tile; with 1 nothing has to be combined.
    """

    sizes: TileSizes
    tiles: int
    splits: int


def tree_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past_key: Tensor,
    past_value: Tensor,
    past_lens: Tensor,
    tree_mask: Tensor,
    positions: Tensor | None = None,
    *,
    scale: float,
    softcap: float = 0.0,
    sliding_window: int = 0,
    gpu: Gpu | None = None,
) -> Tensor:
    """Attend from every node of every tree to the keys that it may see, on PyTorch's current stream.

    Operands are those of `spec_trt.plugins.tree_attention.reference`, as tensors on a GPU; their last axes are
    contiguous. Nothing is read back from the GPU, so the call can be captured in a CUDA graph, once it has run before
    it (the first call for new sizes compiles).

    Args:
        query: [batch, heads, nodes, head_dim] float16, bfloat16 or float32.
        key: [batch, kv_heads, nodes, head_dim].
        value: As `key`.
        past_key: [batch, kv_heads, past, head_dim].
        past_value: As `past_key`.
        past_lens: [batch] int64.
        tree_mask: [batch, nodes, window] bool.
        positions: [batch, window] int64; needed with `sliding_window`.
        scale: Factor on the scores.
        softcap: Bound of the scores; 0 for none.
        sliding_window: Positions a node sees, its own included; 0 for all.
        gpu: What to cut the work up for; the tensors' own device when None.

    Returns:
        [batch, heads, nodes, head_dim], in the query's dtype.

    Raises:
        BackendError: Triton is missing, there is no GPU, or the kernel can't do what is asked; says which.
    """
    operands = Operands(
        query=query,
        key=key,
        value=value,
        past_key=past_key,
        past_value=past_value,
        past_lens=past_lens.contiguous(),
        tree_mask=tree_mask.contiguous().view(torch.uint8),
        positions=None if positions is None else positions.contiguous(),
    )
    gpu = gpu or find_gpu(query.device)
    plan = plan_launch(operands, gpu)
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    rows = math.prod(query.shape[:3]) if plan.splits > 1 else 0
    partial_out = torch.empty((plan.splits, rows, query.shape[3]), dtype=torch.float32, device=query.device)
    partial_peak = torch.empty((plan.splits, rows, 2), dtype=torch.float32, device=query.device)
    attributes = Attributes(scale=scale, softcap=softcap, sliding_window=sliding_window)
    launch(operands, out, (partial_out, partial_peak), attributes=attributes, plan=plan, gpu=gpu)
    return out


def plan_launch(operands: Operands, gpu: Gpu) -> LaunchPlan:
    """Cut a pass up for a GPU.

    Raises:
        BackendError: The kernel has no tile for these shapes, or the GPU lacks their type.
    """
    batch, heads, nodes, head_dim = operands.query.shape
    kv_heads, past = operands.past_key.shape[1:3]
    dtype = operands.query.dtype
    dtype_name = DTYPE_NAMES.get(dtype, str(dtype))
    refuse_dtype(dtype_name)
    refuse_sizes(heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    refuse_capability(dtype=dtype_name, capability=gpu.capability)
    rows = heads // kv_heads * nodes
    sizes = tile_sizes(capability=gpu.capability, head_dim=head_dim, itemsize=dtype.itemsize, rows=rows)
    tiles = row_tiles(rows, sizes)
    splits = split_count(
        tiles=tiles * batch * kv_heads,
        past=past,
        window=operands.tree_mask.shape[2],
        sizes=sizes,
        multiprocessors=gpu.multiprocessors,
    )
    return LaunchPlan(sizes=sizes, tiles=tiles, splits=splits)


def launch(
    operands: Operands,
    out: KernelTensor,
    partials: tuple[KernelTensor, KernelTensor],
    *,
    attributes: Attributes,
    plan: LaunchPlan,
    gpu: Gpu,
) -> None:
    """Start the kernels on PyTorch's current stream.

    Args:
        operands: The op's inputs.
        out: [batch, heads, nodes, head_dim].
        partials: The splits' sums [splits, batch * heads * nodes, head_dim], and their peaks and totals
            [splits, batch * heads * nodes, 2], float32; not touched with one split.
        attributes: The op's attributes.
        plan: From `plan_launch`.
        gpu: The device.

    Raises:
        BackendError: Triton is missing, or a sliding window comes without positions.
    """
    if attributes.sliding_window and operands.positions is None:
        raise BackendError("the TreeAttention kernel needs the input `positions` with sliding_window: found none")
    kernel = import_kernel(_KERNEL)
    _attend(kernel, operands, out, partials, attributes, plan, gpu)
    if plan.splits > 1:
        _combine(kernel, out, partials, plan)


def score_factors(attributes: Attributes) -> tuple[float, float]:
    """The kernel's `scale` and `softcap`, made for exponentials of base 2.

    Without a softcap scores are product * scale * log2(e). With one, tanh's argument is needed first, doubled:
    2 * log2(e) * product * scale / softcap; the bounded scores are then softcap * log2(e) times the tanh.
    """
    log2_e = math.log2(math.e)
    if attributes.softcap:
        return 2 * log2_e * attributes.scale / attributes.softcap, attributes.softcap * log2_e
    return attributes.scale * log2_e, 0.0


def attention_constants(head_dim: int, attributes: Attributes, plan: LaunchPlan, gpu: Gpu) -> dict[str, Any]:
    """What `attention_kernel` is compiled for, and how: its constants and Triton's options."""
    return {
        "head_dim": head_dim,
        "block_dim": padded_head_dim(head_dim),
        "block_rows": plan.sizes.block_rows,
        "block_keys": plan.sizes.block_keys,
        "block_columns": plan.sizes.block_columns,
        "has_softcap": bool(attributes.softcap),
        "windowed": bool(attributes.sliding_window),
        "split": plan.splits > 1,
        "precision": "ieee",
        "widen": gpu.interpreted,
        "num_warps": plan.sizes.num_warps,
        "num_stages": plan.sizes.num_stages,
        "enable_fp_fusion": True,
    }


def combine_constants(head_dim: int) -> dict[str, Any]:
    """The same of `combine_kernel`."""
    block_dim = padded_head_dim(head_dim)
    return {
        "head_dim": head_dim,
        "block_dim": block_dim,
        "block_splits": combine_splits(block_dim),
        "num_warps": _COMBINE_WARPS,
        "enable_fp_fusion": True,
    }


def _attend(
    kernel: ModuleType,
    operands: Operands,
    out: KernelTensor,
    partials: tuple[KernelTensor, KernelTensor],
    attributes: Attributes,
    plan: LaunchPlan,
    gpu: Gpu,
) -> None:
    batch, heads, nodes, head_dim = operands.query.shape
    kv_heads, past = operands.past_key.shape[1:3]
    own, cached = (operands.query, operands.key, operands.value), (operands.past_key, operands.past_value)
    arguments = [
        *own,
        *cached,
        operands.past_lens,
        operands.tree_mask,
        operands.past_lens if operands.positions is None else operands.positions,
        out,
        *partials,
        *score_factors(attributes),
        attributes.sliding_window,
        nodes,
        operands.tree_mask.shape[2],
        past,
        kv_heads,
        heads // kv_heads,
        plan.splits,
        *_strides(*own, *cached, out),
    ]
    grid, constants = (plan.splits, plan.tiles, batch * kv_heads), attention_constants(head_dim, attributes, plan, gpu)
    start_kernel(kernel.attention_kernel, grid, arguments, constants)


def _combine(
    kernel: ModuleType, out: KernelTensor, partials: tuple[KernelTensor, KernelTensor], plan: LaunchPlan
) -> None:
    batch, heads, nodes, head_dim = out.shape
    arguments = [*partials, out, nodes, heads, plan.splits, *_strides(out)]
    start_kernel(kernel.combine_kernel, (batch * heads * nodes,), arguments, combine_constants(head_dim))


def _strides(*tensors: KernelTensor) -> list[int]:
    return [tensor.stride(axis) for tensor in tensors for axis in range(3)]
