"""The KV cache: one allocation, per-layer views for the graphs, and commits of accepted rows alone."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spec_trt import names
from spec_trt.errors import BackendError, ConfigError
from spec_trt.huge_pages import prefer_huge_pages
from spec_trt.manifest import ModelFacts
from spec_trt.runtime.gpu_rows import GpuRowWriter

__all__ = ["DTYPES", "KVCache", "Rows", "on_host"]

Rows = Tensor | NDArray[Any]
"""Rows of a cache: a tensor, or `on_host` of one, which takes no detour through PyTorch to read."""

_ROOM = 1.5
"""Memory taken over memory asked for: the buffer grows within it, as new memory is slow to touch first."""

_ALIGNMENT = 256
"""Bytes: of every address that TensorRT is given."""

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class KVCache:
    """The committed keys and values of every layer and sequence.

    A pass hands out new rows only; `commit` copies the accepted ones in, so a rejected node never has
    to be rolled back. Rows past a sequence's length may hold *tentative* rows (a draft's own levels),
    dropped by the next commit or `truncate`.

    Attributes:
        buffer: [2 * layers, batch, kv_heads, capacity, head_dim]; keys of layer i at 2i, values at 2i+1.
        lengths: [batch] int64: committed rows per sequence.
        tentative: [batch] int64: tentative rows behind them.

    Args:
        facts: The model's shape and dtype.
        batch: Sequences held.
        step: Rows the buffer grows by at the least; it grows by a sixteenth when that is more, so that
            the copies of a long generation stay few and the unused rows, which attention reads, too.
        capacity: Rows of a buffer that is never another one; it grows and shrinks when None.
        device: Where the buffer lives.

    Raises:
        BackendError: A fixed buffer's sequences would not begin where TensorRT lets a tensor begin.
    """

    def __init__(
        self,
        facts: ModelFacts,
        *,
        batch: int = 1,
        step: int = 64,
        capacity: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        if batch < 1 or step < 1:
            raise ConfigError(f"a cache needs batch >= 1 and step >= 1, found {batch} and {step}")
        self._step, self._fixed = step, capacity is not None
        self._blocks, self._head_dim = (2 * facts.layers, batch, facts.kv_heads), facts.head_dim
        self._storage = torch.empty(0, dtype=DTYPES[facts.dtype], device=device)
        self._writer = GpuRowWriter(self._storage.device) if self._storage.is_cuda else None
        self.lengths: NDArray[np.int64] = np.zeros(batch, dtype=np.int64)
        self.tentative: NDArray[np.int64] = np.zeros(batch, dtype=np.int64)
        self._show(0)
        if capacity is None:
            self._resize(step)
        else:
            self._refuse_unaligned(batch, capacity)
            self._hold(_aligned((*self._blocks, capacity, self._head_dim), self._storage).zero_())

    def _refuse_unaligned(self, batch: int, capacity: int) -> None:
        size = self._blocks[-1] * capacity * self._head_dim * self._storage.element_size()
        if batch > 1 and size % _ALIGNMENT and self._storage.device.type != "cpu":
            raise BackendError(
                f"a sequence's cache must be a multiple of {_ALIGNMENT} bytes for batches, found {size} bytes for "
                f"{capacity} rows: build the engine again, or run one sequence at a time"
            )

    @property
    def capacity(self) -> int:
        """Rows of the buffer: the `past` dimension of a pass."""
        return int(self._host.shape[3])

    def views(self, slot: int = 0, batch: int | None = None) -> dict[str, Tensor]:
        """The buffer of some neighbouring sequences as the graphs' inputs, a contiguous view per tensor."""
        slots = slice(slot, None if batch is None else slot + batch)
        return _per_layer(self.buffer, slots, names.past_key, names.past_value)

    def new_rows(self, batch: int, nodes: int) -> Tensor:
        """Make room for one pass's rows: [2 * layers, batch, kv_heads, nodes, head_dim]."""
        sections, _, kv_heads = self._blocks
        shape = (sections, batch, kv_heads, nodes, self._head_dim)
        return self.buffer.new_empty(shape) if self._writer is None else _aligned(shape, self._storage)

    def new_row_views(self, new_rows: Tensor) -> dict[str, Tensor]:
        """A pass's rows as the graphs' outputs, a contiguous view per tensor."""
        return _per_layer(new_rows, slice(None), names.new_key, names.new_value)

    def reserve(self, rows: int) -> None:
        """Grow the buffer, if need be, until it holds `rows` rows; contents stay.

        Raises:
            BackendError: It is not to grow.
        """
        if rows > self.capacity:
            if self._fixed:
                raise BackendError(
                    f"the engine's cache holds {self.capacity} rows, found {rows}: shorten the text, or build the "
                    "engine again with a larger --max-length"
                )
            self._resize(self._rounded(rows))

    def reset(self, slot: int, rows: int = 0) -> None:
        """Forget one sequence, and make the buffer fit when its next one begins with `rows` rows.

        A buffer that an earlier, longer sequence left behind is cut: every pass reads all of it.
        """
        self.lengths[slot] = self.tentative[slot] = 0
        if self._fixed:
            return
        wanted = self._rounded(max(rows, int((self.lengths + self.tentative).max())))
        if wanted != self.capacity:
            self._resize(wanted)

    def _rounded(self, rows: int) -> int:
        step = self._step * max(1, round(rows / 16 / self._step))
        return max(1, -(-rows // step)) * step

    def _resize(self, capacity: int) -> None:
        """Lay the rows out for another capacity, in the same memory where that has room.

        Attention gives rows it does not see weight 0, so they must at least be finite: memory begins as zeros.
        """
        earlier, before = self._storage, self.capacity
        size = math.prod(self._blocks) * capacity * self._head_dim
        on_cpu = earlier.device.type == "cpu"
        if size > len(earlier) or not on_cpu:
            self._storage = _zeros(int(size * _ROOM) if on_cpu else size, earlier)
        rows = int((self.lengths + self.tentative).max())
        if rows:
            _move_blocks(
                on_host(earlier),
                on_host(self._storage),
                blocks=math.prod(self._blocks),
                used=rows * self._head_dim,
                before=before * self._head_dim,
                after=capacity * self._head_dim,
            )
        self._show(capacity)

    def _show(self, capacity: int) -> None:
        """Make the storage's beginning the buffer."""
        size = math.prod(self._blocks) * capacity * self._head_dim
        self._hold(self._storage[:size].view(*self._blocks, capacity, self._head_dim))

    def _hold(self, buffer: Tensor) -> None:
        self.buffer, self._host = buffer, on_host(buffer)

    def commit(self, new_rows: Rows, paths: Sequence[Sequence[int]], *, slot: int = 0) -> None:
        """Append the accepted rows of some neighbouring sequences and drop their tentative ones.

        Args:
            new_rows: [2 * layers, batch, kv_heads, nodes, head_dim], as a pass filled it.
            paths: [batch] lists of nodes to keep, in the order of their positions; may be empty.
            slot: The first of the sequences.
        """
        slots = slice(slot, slot + len(paths))
        self.tentative[slots] = 0
        self._write(new_rows, paths, slots)
        for row, path in enumerate(paths, start=slot):
            self.lengths[row] += len(path)

    def append_tentative(self, new_rows: Rows, nodes: Sequence[Sequence[int]], *, slot: int = 0) -> None:
        """Put rows behind the committed and earlier tentative ones, for the next passes' trees to see."""
        slots = slice(slot, slot + len(nodes))
        self._write(new_rows, nodes, slots)
        for row, rows in enumerate(nodes, start=slot):
            self.tentative[row] += len(rows)

    def truncate(self) -> None:
        """Drop all tentative rows."""
        self.tentative[:] = 0

    def _write(self, new_rows: Rows, nodes: Sequence[Sequence[int]], slots: slice) -> None:
        """Copy the chosen rows of every sequence behind what it holds, one slice per run of neighbouring nodes.

        On a CPU not one copy by PyTorch's index arrays: it spreads that over its own threads, which on a CPU wait for
        cores that ONNX Runtime's threads still hold (4 ms instead of 0.1 ms per pass on two cores).
        """
        ends = [int(self.lengths[row]) + int(self.tentative[row]) for row in range(slots.start, slots.stop)]
        self.reserve(max(end + len(rows) for end, rows in zip(ends, nodes, strict=True)))
        if self._writer is not None and isinstance(new_rows, Tensor):
            self._writer.write(self.buffer[:, slots], new_rows, nodes, ends)
            return
        source = on_host(new_rows)
        for row, (end, kept) in enumerate(zip(ends, nodes, strict=True)):
            for start, first, count in _runs(kept):
                target = slice(end + start, end + start + count)
                self._host[:, slots.start + row, :, target] = source[:, row, :, first : first + count]


def _zeros(size: int, like: Tensor) -> Tensor:
    """New memory, on a CPU in huge pages and filled without PyTorch's threads, which wait for busy cores."""
    storage = like.new_empty(size)
    if storage.device.type == "cpu":
        prefer_huge_pages(storage.data_ptr(), storage.nbytes)
    on_host(storage)[:] = 0
    return storage


def _aligned(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """A tensor whose every section begins where TensorRT lets a tensor begin, and is contiguous from there on."""
    sections, batch, heads, rows, head_dim = shape
    unit = _ALIGNMENT // like.element_size()
    section = -(-batch * heads * rows * head_dim // unit) * unit
    strides = (section, heads * rows * head_dim, rows * head_dim, head_dim, 1)
    return like.new_empty(sections * section).as_strided(shape, strides)


def _move_blocks(source: Any, target: Any, *, blocks: int, used: int, before: int, after: int) -> None:  # noqa: ANN401 - see `on_host`
    """Move the beginning of every block to where the block lies once all have another size.

    Args:
        source: The blocks, one behind another.
        target: Where they go; may be the same memory.
        blocks: How many.
        used: Numbers of each to move.
        before: Numbers of a block in the source.
        after: Numbers of one in the target.
    """
    for block in reversed(range(blocks)) if after > before else range(blocks):
        target[block * after : block * after + used] = source[block * before : block * before + used]


def on_host(tensor: Rows) -> Any:  # noqa: ANN401 - an array or a tensor: both are indexed alike
    """The same memory as a NumPy array where there is one: right after a pass its shorter way counts."""
    if isinstance(tensor, np.ndarray) or tensor.device.type != "cpu":
        return tensor
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _runs(nodes: Sequence[int]) -> list[tuple[int, int, int]]:
    """Split nodes into runs of consecutive numbers: (place in `nodes`, first node, count)."""
    runs: list[tuple[int, int, int]] = []
    for place, node in enumerate(nodes):
        start, first, count = runs[-1] if runs else (0, 0, 0)
        if runs and node == first + count:
            runs[-1] = (start, first, count + 1)
        else:
            runs.append((place, node, 1))
    return runs


def _per_layer(stacked: Tensor, slots: slice, key: names.LayerName, value: names.LayerName) -> dict[str, Tensor]:
    """Name the keys (even sections) and values (odd) of every layer."""
    sections = stacked[:, slots].unbind()
    return {(value if section % 2 else key)(section // 2): rows for section, rows in enumerate(sections)}
