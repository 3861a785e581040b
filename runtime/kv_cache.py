"""The KV cache: one allocation, per-layer views for the graphs, and commits of accepted rows alone."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spec_trt import names
from spec_trt.errors import BackendError, ConfigError
from spec_trt.manifest import ModelFacts
from spec_trt.runtime.cache_memory import (
    ALIGNMENT,
    DTYPES,
    Rows,
    aligned,
    copied,
    move_rows,
    on_host,
    untouched_zeros,
    zeros,
)
from spec_trt.runtime.gpu_rows import GpuRowWriter
from spec_trt.runtime.pass_memory import PassMemory

__all__ = ["KVCache"]

_ROOM = 1.5
"""Memory taken over memory asked for: the buffer grows within it, as new memory is slow to touch first."""

_LITTLE_BYTES = 1 << 22
"""Memory that is not worth giving back: all that is bound to it would have to be bound anew."""


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
        limit_bytes: Memory that the buffer grows within, taken once and touched as it is used; any when None.
        gives_back: Whether memory is given back when much less is needed, which costs time when more is needed again;
            a few MiB are kept.
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
        limit_bytes: int | None = None,
        gives_back: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        if batch < 1 or step < 1:
            raise ConfigError(f"a cache needs batch >= 1 and step >= 1, found {batch} and {step}")
        self._step, self._fixed = step, capacity is not None
        self._sections, self._heads, self._head_dim = 2 * facts.layers, facts.kv_heads, facts.head_dim
        self._storage = torch.empty(0, dtype=DTYPES[facts.dtype], device=device)
        self._new_rows = PassMemory(self._storage)
        self._writer = GpuRowWriter(self._storage.device) if self._storage.is_cuda else None
        self._limited, self._gives_back = limit_bytes is not None, gives_back
        if limit_bytes is not None:
            self._storage = untouched_zeros(limit_bytes // self._storage.element_size(), self._storage)
        self.lengths: NDArray[np.int64] = np.zeros(batch, dtype=np.int64)
        self.tentative: NDArray[np.int64] = np.zeros(batch, dtype=np.int64)
        self._show(batch, 0)
        if capacity is None:
            self._resize(batch, step)
        else:
            self._refuse_unaligned(batch, capacity)
            self._hold(aligned(self._shape(batch, capacity), self._storage.new_empty).zero_())

    def _shape(self, batch: int, capacity: int) -> tuple[int, int, int, int, int]:
        return self._sections, batch, self._heads, capacity, self._head_dim

    def _refuse_unaligned(self, batch: int, capacity: int) -> None:
        size = self._heads * capacity * self._head_dim * self._storage.element_size()
        if batch > 1 and size % ALIGNMENT and self._storage.device.type != "cpu":
            raise BackendError(
                f"a sequence's cache must be a multiple of {ALIGNMENT} bytes for batches, found {size} bytes for "
                f"{capacity} rows: build the engine again, or run one sequence at a time"
            )

    @property
    def batch(self) -> int:
        """Sequences that the buffer holds."""
        return len(self.lengths)

    @property
    def capacity(self) -> int:
        """Rows of the buffer: the `past` dimension of a pass."""
        return int(self._host.shape[3])

    @property
    def memory(self) -> Tensor:
        """Another object as soon as the rows of a batch and capacity may lie elsewhere than they did."""
        return self._storage

    @property
    def is_fixed(self) -> bool:
        """Whether the buffer is never another one."""
        return self._fixed

    def views(self, slot: int = 0, batch: int | None = None) -> dict[str, Tensor]:
        """The buffer of some neighbouring sequences as the graphs' inputs, a contiguous view per tensor."""
        slots = slice(slot, None if batch is None else slot + batch)
        return _per_layer(self.buffer, slots, names.past_key, names.past_value)

    def new_rows(self, batch: int, nodes: int) -> Tensor:
        """Make room for one pass's rows: [2 * layers, batch, kv_heads, nodes, head_dim].

        The passes of all sizes have one room: commit what one filled before another runs.
        """
        return aligned(self._shape(batch, nodes), self._new_rows.take)

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
            self._resize(self.batch, self.rounded(rows))

    def reset(self, slot: int, rows: int = 0, *, keep: int = 0) -> None:
        """Forget one sequence, and make the buffer fit when its next one begins with `rows` rows.

        A buffer that an earlier, longer sequence left behind is cut: every pass reads all of it.

        Args:
            slot: The sequence.
            rows: Of its next one.
            keep: First rows that the two have in common.
        """
        self.keep(slot, keep)
        self.fit(max(rows, int((self.lengths + self.tentative).max())))

    def keep(self, slot: int, rows: int) -> None:
        """Forget all of a sequence but its first rows."""
        self.lengths[slot], self.tentative[slot] = rows, 0

    def fit(self, rows: int, batch: int | None = None) -> None:
        """Lay the buffer out for some number of sequences with up to `rows` rows each; what is beyond is cut off."""
        batch = batch or self.batch
        if self._fixed:
            return
        if (batch, self.rounded(rows)) != (self.batch, self.capacity):
            self._resize(batch, self.rounded(rows))

    def swap(self, one: int, other: int) -> None:
        """Let two sequences change places."""
        if one == other:
            return
        first, second = (self._host[:, slot, :, : self.lengths[slot]] for slot in (one, other))
        saved = copied(first)
        self._host[:, one, :, : self.lengths[other]] = second
        self._host[:, other, :, : self.lengths[one]] = saved
        for counts in (self.lengths, self.tentative):
            counts[[one, other]] = counts[[other, one]]

    def rounded(self, rows: int) -> int:
        """The capacity of a buffer that grows when it is to hold so many rows."""
        step = self._step << max(0, int(rows / 16 / self._step).bit_length() - 1)
        return max(1, -(-rows // step)) * step

    def bytes_for(self, batch: int, rows: int) -> int:
        """Memory of a buffer that grows when it is to hold some sequences with up to `rows` rows each."""
        return math.prod(self._shape(batch, self.rounded(rows))) * self._storage.element_size()

    def _resize(self, batch: int, capacity: int) -> None:
        """Lay the rows out for another batch and capacity, in the same memory where that has room.

        Attention gives rows it does not see weight 0, so they must at least be finite: memory begins as zeros.
        """
        held, room = self.batch, self.capacity
        if (batch < held) != (capacity < room):  # in two moves, as rows that all go one way overwrite none to come
            self._move(min(batch, held), min(capacity, room))
        self._move(batch, capacity)

    def _move(self, batch: int, capacity: int) -> None:
        """Move the rows to where they lie in a buffer that is larger, or smaller, in both; cut off what is beyond."""
        size, earlier, before = math.prod(self._shape(batch, capacity)), self._storage, self.buffer.shape
        storage = self._storage_for(size)
        kept = min(batch, self.batch)
        lengths, tentative = (np.zeros(batch, dtype=np.int64) for _ in range(2))
        lengths[:kept] = np.minimum(self.lengths[:kept], capacity)
        tentative[:kept] = np.minimum(self.tentative[:kept], capacity - lengths[:kept])
        rows = int((lengths + tentative).max())
        if rows:
            after = self._shape(batch, capacity)
            move_rows(on_host(earlier), on_host(storage), rows, before=tuple(before), after=after)
        self._storage, self.lengths, self.tentative = storage, lengths, tentative
        self._show(batch, capacity)

    def _storage_for(self, size: int) -> Tensor:
        """Memory for so many numbers: what there is, where it has room."""
        held, on_cpu = self._storage, self._storage.device.type == "cpu"
        if size > len(held) and self._limited:
            raise BackendError(
                f"the cache may take {held.nbytes} bytes, found a need for {size * held.element_size()}: "
                "shorten the texts, or raise the limit"
            )
        too_large = self._gives_back and held.nbytes > _LITTLE_BYTES and len(held) > 2 * _ROOM * size
        if size > len(held) or too_large or not (on_cpu or self._limited):
            return zeros(int(size * _ROOM) if on_cpu else size, held)
        return held

    def _show(self, batch: int, capacity: int) -> None:
        """Make the storage's beginning the buffer."""
        shape = self._shape(batch, capacity)
        self._hold(self._storage[: math.prod(shape)].view(shape))

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
