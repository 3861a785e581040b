"""Starting the commit kernel on PyTorch tensors."""

from typing import Any

from torch import Tensor

from spec_trt.errors import BackendError
from spec_trt.plugins.triton_gpu import find_gpu, import_kernel, start_kernel

__all__ = ["commit_constants", "commit_rows"]

_KERNEL = "spec_trt.plugins.commit_rows.kernel"
_BLOCK_ROWS = 8
_NUM_WARPS = 2


def commit_rows(buffer: Tensor, new_rows: Tensor, paths: Tensor, counts: Tensor, lengths: Tensor) -> None:
    """Copy the accepted rows of all layers and sequences behind what the buffer holds, on PyTorch's current stream.

    Row lengths[b] + i of sequence b becomes node paths[b, i] of the pass, for every i < counts[b]. Everything is
    read on the GPU: the call can be captured in a CUDA graph, once it has run before it.

    Args:
        buffer: [2 * layers, batch, kv_heads, capacity, head_dim]; written in place. May be a view of some
            neighbouring sequences; the last axis is contiguous.
        new_rows: [2 * layers, batch, kv_heads, nodes, head_dim], as a pass filled it.
        paths: [batch, longest] integers: the accepted nodes, in the order of their positions. What is behind
            a sequence's count is not read.
        counts: [batch] integers: rows to keep, 0 for none.
        lengths: [batch] integers: rows that each sequence holds already; not changed.

    Raises:
        BackendError: Triton or a GPU is missing, or the shapes do not fit.
    """
    _refuse(buffer, new_rows, paths)
    find_gpu(buffer.device)
    kernel = import_kernel(_KERNEL)
    sections, batch, kv_heads, capacity, head_dim = buffer.shape
    longest = paths.shape[1]
    if not longest:
        return
    operands = [
        buffer,
        new_rows,
        paths.contiguous(),
        counts.contiguous(),
        lengths.contiguous(),
        kv_heads,
        longest,
        new_rows.shape[3],
        capacity,
        *buffer.stride()[:4],
        *new_rows.stride()[:4],
    ]
    grid = (-(-longest // _BLOCK_ROWS), batch, sections * kv_heads)
    start_kernel(kernel.commit_kernel, grid, operands, commit_constants(head_dim))


def commit_constants(head_dim: int) -> dict[str, Any]:
    """What `commit_kernel` is compiled for, and how: its constants and Triton's options."""
    return {
        "head_dim": head_dim,
        "block_dim": 1 << (head_dim - 1).bit_length(),
        "block_rows": _BLOCK_ROWS,
        "num_warps": _NUM_WARPS,
        "enable_fp_fusion": True,
    }


def _refuse(buffer: Tensor, new_rows: Tensor, paths: Tensor) -> None:
    """Refuse tensors that do not belong together."""
    fits = buffer.shape[:3] == new_rows.shape[:3] and buffer.shape[4:] == new_rows.shape[4:]
    if not fits or buffer.dtype != new_rows.dtype or paths.shape[0] != buffer.shape[1]:
        raise BackendError(
            f"committing rows takes new rows and paths of the buffer's own sizes: found a buffer {list(buffer.shape)} "
            f"{buffer.dtype}, new rows {list(new_rows.shape)} {new_rows.dtype} and paths {list(paths.shape)}"
        )
