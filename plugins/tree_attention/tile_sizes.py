"""How the kernel's work is cut up, per GPU: the sizes of a tile, and the programs that share a sequence's keys."""

from dataclasses import dataclass
from functools import cache

__all__ = [
    "MAX_HEAD_DIM",
    "MAX_PROGRAMS",
    "TileSizes",
    "combine_splits",
    "padded_head_dim",
    "partial_bytes",
    "row_tiles",
    "split_count",
    "tile_sizes",
    "workspace_bytes",
]

MAX_HEAD_DIM = 256

MAX_PROGRAMS = 384
"""Programs that are worth starting on the largest GPU there is: two for each of its multiprocessors.

An engine's workspace is reserved where it is built, for GPUs not known there, so this is what it is sized by.
"""

_MAX_SPLITS = 128  # more would only make the combining longer
_PARTIAL_BYTES = 4  # float32
_FEWEST_ROWS = 16  # what a matrix product takes
_COLUMNS = 16  # the mask's columns per block: their rows are loaded by pointers of two kinds, which takes registers


@dataclass(frozen=True, slots=True, kw_only=True)
class TileSizes:
    """One program's tile.

    Attributes:
        block_rows: Rows (query heads of one key head times nodes).
        block_keys: Committed keys per step.
        block_columns: Columns of the tree's mask per step.
        num_warps: Warps of the program.
        num_stages: Steps whose loads are under way at once.
    """

    block_rows: int
    block_keys: int
    block_columns: int
    num_warps: int
    num_stages: int


_LIMITS = (16, 32, 64, 128)  # of the rows of a tile, in the tables below

# Per padded head_dim: keys per step, steps under way, most rows, and the rows from which on the sums take eight warps'
# registers. Shared memory per multiprocessor decides: 164 KB (8.0), 100 KB (8.6, 8.9, 12.x), 228 KB (9.0, 10.x). Two
# programs should fit at once. What the assembler makes of a tile is seen by `tests.plugins.kernel_resources`: none may
# spill.
_SMALL = {64: (64, 3, 128, 128), 128: (32, 3, 128, 128), 256: (32, 2, 64, 64)}
_LARGE = {64: (64, 3, 128, 128), 128: (64, 3, 128, 128), 256: (32, 3, 64, 64)}
_LARGE_WIDE = {64: (64, 3, 128, 32), 128: (64, 3, 128, 32), 256: (32, 3, 64, 32)}
_BY_CAPABILITY = {80: _SMALL, 90: _LARGE, 100: _LARGE_WIDE, 120: _SMALL}

# Without tensor cores that Triton drives (7.5, and float32 anywhere) products are taken in registers.
_SCALAR = {64: (32, 1, 32, 16), 128: (16, 1, 16, 32), 256: (16, 1, 16, 16)}


def tile_sizes(*, capability: int, head_dim: int, itemsize: int, rows: int) -> TileSizes:
    """Choose a tile.

    Args:
        capability: Compute capability of the GPU; one that the table lacks takes the nearest below it.
        head_dim: Of the model.
        itemsize: Bytes of an element.
        rows: Query heads of one key head times nodes.
    """
    scalar = capability < 80 or itemsize == 4
    table = _SCALAR if scalar else _BY_CAPABILITY[max(known for known in _BY_CAPABILITY if known <= capability)]
    block_keys, num_stages, limit, wide = table[max(64, padded_head_dim(head_dim))]
    block_rows = _block_rows(rows, limit)
    return TileSizes(
        block_rows=block_rows,
        block_keys=block_keys,
        block_columns=_COLUMNS,
        num_warps=8 if block_rows >= wide else 4,
        num_stages=num_stages,
    )


def padded_head_dim(head_dim: int) -> int:
    """The next power of two that a matrix product takes."""
    return max(16, 1 << (head_dim - 1).bit_length())


def combine_splits(block_dim: int) -> int:
    """Splits that one step of the combining adds up, for a padded head_dim."""
    return max(16, 4096 // block_dim)


def row_tiles(rows: int, sizes: TileSizes) -> int:
    """Programs that share the rows of one key head."""
    return -(-rows // sizes.block_rows)


def split_count(*, tiles: int, past: int, window: int, sizes: TileSizes, multiprocessors: int) -> int:
    """Programs that share the keys of one tile of rows: as many as fill the GPU, 1 where the tiles alone do.

    Args:
        tiles: Row tiles, over all sequences and key heads.
        past: Rows of the cache buffer, valid or not: all that is known ahead of the launch.
        window: Columns of the mask.
        sizes: The tile.
        multiprocessors: Of the GPU.
    """
    programs = min(2 * multiprocessors, MAX_PROGRAMS)
    blocks = -(-past // sizes.block_keys) + -(-window // sizes.block_columns)
    return max(1, min(-(-programs // tiles), blocks, _MAX_SPLITS))


@cache  # TensorRT asks again and again, for every layer
def workspace_bytes(*, batch: int, heads: int, kv_heads: int, nodes: int, head_dim: int) -> int:
    """What the splits' partial sums take at the most, on any GPU, in passes of up to these sizes."""
    group = heads // kv_heads
    rows = max(
        _split_rows(sequences * kv_heads, group * count, limit)
        for sequences in range(1, batch + 1)
        for count in range(1, nodes + 1)
        for limit in _LIMITS
    )
    return partial_bytes(rows, head_dim)


def partial_bytes(rows: int, head_dim: int) -> int:
    """Bytes of the partial sums, peaks and totals of some rows."""
    return rows * (head_dim + 2) * _PARTIAL_BYTES


def _split_rows(key_heads: int, rows: int, limit: int) -> int:
    """Rows that the partial sums of one pass hold; 0 where nothing is split."""
    tiles = key_heads * -(-rows // _block_rows(rows, limit))
    splits = min(-(-MAX_PROGRAMS // tiles), _MAX_SPLITS)
    return splits * key_heads * rows if splits > 1 else 0


def _block_rows(rows: int, limit: int) -> int:
    return min(limit, max(_FEWEST_ROWS, 1 << (rows - 1).bit_length()))
