"""The Triton kernels of `spec_trt::TreeAttention`; `launch` starts them, `reference` defines the op.

Rows of a program's tile are the query heads of one key head times the nodes, so that a key is loaded
once for all of them. Keys come in two runs: the committed rows of the buffer, and the mask's columns,
which are the tentative rows of the buffer and then this pass's own rows, each read where it lies. The
blocks of both runs are dealt out to `splits` programs, by the lengths that are there, not by the
buffer's capacity; each keeps an online softmax in float32, base 2, and `combine_kernel` adds them up.
"""

import triton
import triton.language as tl

__all__ = ["attention_kernel", "combine_kernel"]

# The score of a hidden key. Finite: a row whose keys so far are all hidden must not make NaNs. What such a row has
# gathered counts for nothing as soon as a real score comes, here or in another split.
HIDDEN = tl.constexpr(-1.0e30)


@triton.jit  # type: ignore[untyped-decorator]
def _multiply(
    left: tl.tensor, right: tl.tensor, total: tl.tensor, precision: tl.constexpr, widen: tl.constexpr
) -> tl.tensor:
    """Add a matrix product to a float32 total. The interpreter can't multiply bfloat16: `widen` there."""
    if widen:
        left = left.to(tl.float32)
        right = right.to(tl.float32)
    return tl.dot(left, right, total, input_precision=precision)


@triton.jit  # type: ignore[untyped-decorator]
def _step(
    queries: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    visible: tl.tensor,
    state: tl.tensor,
    scale: tl.tensor,
    softcap: tl.tensor,
    has_softcap: tl.constexpr,
    precision: tl.constexpr,
    widen: tl.constexpr,
) -> tl.tensor:
    """One block of the online softmax: peak [rows], total [rows] and gathered [rows, head_dim], brought up to date."""
    peak, total, gathered = state
    zero = tl.zeros([queries.shape[0], keys.shape[0]], tl.float32)
    scores = _multiply(queries, tl.trans(keys), zero, precision, widen) * scale
    if has_softcap:  # tanh(x) = 1 - 2 / (1 + exp(2x)), which does not overflow
        scores = softcap * (1.0 - 2.0 / (1.0 + tl.exp2(scores)))
    scores = tl.where(visible, scores, HIDDEN)
    higher = tl.maximum(peak, tl.max(scores, 1))
    weights = tl.exp2(scores - higher[:, None])
    shrink = tl.exp2(peak - higher)
    gathered = _multiply(weights.to(values.dtype), values, gathered * shrink[:, None], precision, widen)
    return higher, total * shrink + tl.sum(weights, 1), gathered


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["scale", "softcap", "sliding_window", "nodes", "window", "past", "kv_heads", "group", "splits"],
    do_not_specialize_on_alignment=["past_lens", "tree_mask", "positions"],
)
def attention_kernel(
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    past_key: tl.tensor,
    past_value: tl.tensor,
    past_lens: tl.tensor,
    tree_mask: tl.tensor,
    positions: tl.tensor,
    out: tl.tensor,
    partial_out: tl.tensor,
    partial_peak: tl.tensor,
    scale: tl.tensor,
    softcap: tl.tensor,
    sliding_window: tl.tensor,
    nodes: tl.tensor,
    window: tl.tensor,
    past: tl.tensor,
    kv_heads: tl.tensor,
    group: tl.tensor,
    splits: tl.tensor,
    query_batch: tl.tensor,
    query_head: tl.tensor,
    query_row: tl.tensor,
    key_batch: tl.tensor,
    key_head: tl.tensor,
    key_row: tl.tensor,
    value_batch: tl.tensor,
    value_head: tl.tensor,
    value_row: tl.tensor,
    past_key_batch: tl.tensor,
    past_key_head: tl.tensor,
    past_key_row: tl.tensor,
    past_value_batch: tl.tensor,
    past_value_head: tl.tensor,
    past_value_row: tl.tensor,
    out_batch: tl.tensor,
    out_head: tl.tensor,
    out_row: tl.tensor,
    head_dim: tl.constexpr,
    block_dim: tl.constexpr,
    block_rows: tl.constexpr,
    block_keys: tl.constexpr,
    block_columns: tl.constexpr,
    has_softcap: tl.constexpr,
    windowed: tl.constexpr,
    split: tl.constexpr,
    precision: tl.constexpr,
    widen: tl.constexpr,
) -> None:
    """Attend from one tile of rows to one split of its keys.

    Grid: (splits, row tiles, batch * kv_heads). Strides are of elements, and the last axis is contiguous.
    `scale` and `softcap` come as `launch.score_factors` makes them. With `split` the sums go to partial_out
    [splits, batch * heads * nodes, head_dim] float32, not yet divided by the weights' total, and the peaks and
    totals to partial_peak [splits, batch * heads * nodes, 2] float32.
    """
    # 1. Which rows.
    sequence = (tl.program_id(2) // kv_heads).to(tl.int64)
    kv_head = (tl.program_id(2) % kv_heads).to(tl.int64)
    row = tl.program_id(1) * block_rows + tl.arange(0, block_rows)
    in_tree = row < group * nodes
    head = kv_head * group + row // nodes
    node = row % nodes
    dim = tl.arange(0, block_dim)
    in_head = dim < head_dim
    # Within the buffer whatever it says: TensorRT times plugins on made-up inputs.
    committed = tl.minimum(tl.maximum(tl.load(past_lens + sequence), 0), past).to(tl.int32)
    tentative = window - nodes
    queries = tl.load(
        query + sequence * query_batch + head[:, None] * query_head + node[:, None] * query_row + dim[None, :],
        mask=in_tree[:, None] & in_head[None, :],
        other=0.0,
    )

    # 2. Which blocks of keys: this split's share of both runs, without what lies behind every row's window.
    first = 0
    node_position = node
    if windowed:
        node_position = tl.load(positions + sequence * window + tentative + node).to(tl.int32)
        behind = tl.maximum(tl.min(node_position, 0) - sliding_window + 1, 0)
        first = tl.minimum(behind, committed) // block_keys * block_keys
    committed_blocks = tl.cdiv(committed - first, block_keys)
    blocks = committed_blocks + tl.cdiv(window, block_columns)
    share = tl.cdiv(blocks, splits)
    begin = tl.program_id(0) * share
    end = tl.minimum(begin + share, blocks)

    peak = tl.full([block_rows], HIDDEN, tl.float32)
    total = tl.zeros([block_rows], tl.float32)
    gathered = tl.zeros([block_rows, block_dim], tl.float32)

    # 3. Committed rows: all visible, but for a sliding window.
    key_base = past_key + sequence * past_key_batch + kv_head * past_key_head
    value_base = past_value + sequence * past_value_batch + kv_head * past_value_head
    for start in range(first + begin * block_keys, tl.minimum(first + end * block_keys, committed), block_keys):
        column = start + tl.arange(0, block_keys)
        there = column < committed
        wanted = there[:, None] & in_head[None, :]
        keys = tl.load(key_base + (column[:, None] * past_key_row + dim[None, :]), mask=wanted, other=0.0)
        values = tl.load(value_base + (column[:, None] * past_value_row + dim[None, :]), mask=wanted, other=0.0)
        visible = there[None, :]
        if windowed:
            distance = node_position[:, None] - column[None, :]
            visible = visible & (distance >= 0) & (distance < sliding_window)
        peak, total, gathered = _step(
            queries, keys, values, visible, (peak, total, gathered), scale, softcap, has_softcap, precision, widen
        )

    # 4. The mask's columns: tentative rows of the buffer, then this pass's own.
    own_key_base = key + sequence * key_batch + kv_head * key_head
    own_value_base = value + sequence * value_batch + kv_head * value_head
    mask_base = tree_mask + sequence * nodes * window
    for block in tl.range(tl.maximum(begin, committed_blocks), end, num_stages=1):
        column = (block - committed_blocks) * block_columns + tl.arange(0, block_columns)
        own = column >= tentative
        there = tl.where(own, column < window, committed + column < past)
        wanted = there[:, None] & in_head[None, :]
        buffer_row = (committed + column)[:, None]
        own_row = (column - tentative)[:, None]
        keys = tl.load(
            tl.where(
                own[:, None],
                own_key_base + (own_row * key_row + dim[None, :]),
                key_base + (buffer_row * past_key_row + dim[None, :]),
            ),
            mask=wanted,
            other=0.0,
        )
        values = tl.load(
            tl.where(
                own[:, None],
                own_value_base + (own_row * value_row + dim[None, :]),
                value_base + (buffer_row * past_value_row + dim[None, :]),
            ),
            mask=wanted,
            other=0.0,
        )
        visible = tl.load(mask_base + (node[:, None] * window + column[None, :]), mask=there[None, :], other=0) != 0
        if windowed:
            column_position = tl.load(positions + sequence * window + column, mask=column < window, other=0)
            distance = node_position[:, None] - column_position.to(tl.int32)[None, :]
            visible = visible & (distance >= 0) & (distance < sliding_window)
        peak, total, gathered = _step(
            queries, keys, values, visible, (peak, total, gathered), scale, softcap, has_softcap, precision, widen
        )

    # 5. The rows' outputs, or this split's part of them. A split with no blocks leaves its part unwritten.
    if split:
        rows = tl.num_programs(2) * group * nodes
        flat = tl.program_id(0).to(tl.int64) * rows + (sequence * kv_heads * group + head) * nodes + node
        tl.store(partial_peak + flat * 2, peak, mask=in_tree)
        tl.store(partial_peak + flat * 2 + 1, total, mask=in_tree)
        if begin < end:
            stored = in_tree[:, None] & in_head[None, :]
            tl.store(partial_out + flat[:, None] * head_dim + dim[None, :], gathered, mask=stored)
    else:
        tl.store(
            out + sequence * out_batch + head[:, None] * out_head + node[:, None] * out_row + dim[None, :],
            (gathered / total[:, None]).to(out.dtype.element_ty),
            mask=in_tree[:, None] & in_head[None, :],
        )


@triton.jit(do_not_specialize=["nodes", "heads", "splits"])  # type: ignore[untyped-decorator]
def combine_kernel(
    partial_out: tl.tensor,
    partial_peak: tl.tensor,
    out: tl.tensor,
    nodes: tl.tensor,
    heads: tl.tensor,
    splits: tl.tensor,
    out_batch: tl.tensor,
    out_head: tl.tensor,
    out_row: tl.tensor,
    head_dim: tl.constexpr,
    block_dim: tl.constexpr,
    block_splits: tl.constexpr,
) -> None:
    """Add the splits of one row up, each weighed by its own peak.

    Grid: (batch * heads * nodes,). A split that had no keys, or saw none of them, has a peak of HIDDEN; its part
    may never have been written, so it is not read.
    """
    row = tl.program_id(0).to(tl.int64)
    dim = tl.arange(0, block_dim)
    in_head = dim < head_dim
    peak = tl.max(tl.full([block_splits], HIDDEN, tl.float32), 0)
    total = peak * 0.0
    gathered = tl.zeros([block_dim], tl.float32)
    for start in range(0, splits, block_splits):
        part = start + tl.arange(0, block_splits)
        flat = part.to(tl.int64) * tl.num_programs(0) + row
        part_peak = tl.load(partial_peak + flat * 2, mask=part < splits, other=HIDDEN)
        seen = part_peak > HIDDEN * 0.5
        part_total = tl.load(partial_peak + flat * 2 + 1, mask=seen, other=0.0)
        wanted = seen[:, None] & in_head[None, :]
        part_out = tl.load(partial_out + flat[:, None] * head_dim + dim[None, :], mask=wanted, other=0.0)
        higher = tl.maximum(peak, tl.max(part_peak, 0))
        weight = tl.exp2(part_peak - higher)
        shrink = tl.exp2(peak - higher)
        total = total * shrink + tl.sum(part_total * weight, 0)
        gathered = gathered * shrink + tl.sum(part_out * weight[:, None], 0)
        peak = higher
    node = row % nodes
    head = row // nodes % heads
    sequence = row // nodes // heads
    target = out + sequence * out_batch + head * out_head + node * out_row + dim
    tl.store(target, (gathered / total).to(out.dtype.element_ty), mask=in_head)
