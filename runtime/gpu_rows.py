"""Rows written into a cache on a GPU: what goes where goes up in one copy, and one kernel writes all layers."""

from collections.abc import Sequence

import torch
from torch import Tensor

from spec_trt.plugins.commit_rows.launch import commit_rows
from spec_trt.runtime.cuda_stream import on_device
from spec_trt.runtime.staging import Staging

__all__ = ["GpuRowWriter"]

_PATHS, _COUNTS, _ENDS = "paths", "counts", "ends"


class GpuRowWriter:
    """Copies chosen rows of a pass behind what a cache holds.

    Args:
        device: The cache's.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._staged: dict[tuple[int, int], Staging] = {}
        self._uploaded = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def write(self, buffer: Tensor, new_rows: Tensor, nodes: Sequence[Sequence[int]], ends: Sequence[int]) -> None:
        """Write them, in the order of the current stream.

        Args:
            buffer: [2 * layers, batch, kv_heads, capacity, head_dim] of the sequences.
            new_rows: [2 * layers, batch, kv_heads, nodes, head_dim], as a pass filled it.
            nodes: [batch] lists of nodes, in the order of their rows; may be empty.
            ends: [batch]: the first row to write.

        Raises:
            BackendError: Triton is missing.
        """
        with on_device(self._device):
            staged = self._stage(nodes, ends)
            commit_rows(buffer, new_rows, *(staged.tensors[name] for name in (_PATHS, _COUNTS, _ENDS)))

    def _stage(self, nodes: Sequence[Sequence[int]], ends: Sequence[int]) -> Staging:
        """Bring up what goes where."""
        staged = self._staging(len(nodes), max(map(len, nodes)))
        if self._uploaded is not None:
            self._uploaded.synchronize()  # the host's side is still being read until then
        for row, kept in enumerate(nodes):
            staged.arrays[_PATHS][row, : len(kept)] = kept
        staged.arrays[_COUNTS][:] = [len(kept) for kept in nodes]
        staged.arrays[_ENDS][:] = ends
        staged.upload()
        if self._uploaded is not None:
            self._uploaded.record()
        return staged

    def _staging(self, batch: int, longest: int) -> Staging:
        """Room for some paths, of few sizes: the next power of two."""
        size = batch, max(8, 1 << (longest - 1).bit_length()) if longest else 8
        if size not in self._staged:
            count = torch.zeros(batch, dtype=torch.int64)
            self._staged[size] = Staging(
                {_PATHS: torch.zeros(size, dtype=torch.int64), _COUNTS: count, _ENDS: count}, self._device
            )
        return self._staged[size]
