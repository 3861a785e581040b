"""The Triton kernel that commits accepted rows; `launch` starts it."""

import triton
import triton.language as tl

__all__ = ["commit_kernel"]


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["kv_heads", "longest", "nodes", "capacity"],
    do_not_specialize_on_alignment=["paths", "counts", "lengths"],
)
def commit_kernel(
    buffer: tl.tensor,
    new_rows: tl.tensor,
    paths: tl.tensor,
    counts: tl.tensor,
    lengths: tl.tensor,
    kv_heads: tl.tensor,
    longest: tl.tensor,
    nodes: tl.tensor,
    capacity: tl.tensor,
    buffer_section: tl.tensor,
    buffer_batch: tl.tensor,
    buffer_head: tl.tensor,
    buffer_row: tl.tensor,
    new_section: tl.tensor,
    new_batch: tl.tensor,
    new_head: tl.tensor,
    new_row: tl.tensor,
    head_dim: tl.constexpr,
    block_dim: tl.constexpr,
    block_rows: tl.constexpr,
) -> None:
    """Copy one block of one sequence's accepted rows, of one key head of one section.

    Grid: (blocks of the longest path, batch, sections * kv_heads). A node or a place that is out of bounds is
    left out, so that no path can write outside its sequence.
    """
    section = (tl.program_id(2) // kv_heads).to(tl.int64)
    kv_head = (tl.program_id(2) % kv_heads).to(tl.int64)
    sequence = tl.program_id(1).to(tl.int64)
    step = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    kept = step < tl.load(counts + sequence)
    node = tl.load(paths + sequence * longest + step, mask=kept & (step < longest), other=-1).to(tl.int64)
    place = tl.load(lengths + sequence).to(tl.int64) + step
    kept = kept & (node >= 0) & (node < nodes) & (place >= 0) & (place < capacity)
    dim = tl.arange(0, block_dim)
    wanted = kept[:, None] & (dim < head_dim)[None, :]
    source = new_rows + section * new_section + sequence * new_batch + kv_head * new_head
    rows = tl.load(source + node[:, None] * new_row + dim[None, :], mask=wanted)
    target = buffer + section * buffer_section + sequence * buffer_batch + kv_head * buffer_head
    tl.store(target + place[:, None] * buffer_row + dim[None, :], rows, mask=wanted)
