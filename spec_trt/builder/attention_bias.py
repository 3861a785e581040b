"""The additive mask of a tree pass, computed once and shared by the layers.

The rules are those of the `TreeAttention` op: buffer row r is visible when r < past_lens; the rows
behind those, window - nodes of them, follow the mask's first columns (tentative rows); this pass's
own rows follow its last `nodes` columns. With a sliding window a key must also stand at most
`sliding_window` - 1 positions before the query.
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from spec_trt.builder.splice import Splice

__all__ = ["BiasKey", "TreeMask", "tree_mask"]

_HIDDEN = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class BiasKey:
    """What a layer's mask depends on: two layers with equal keys share one mask.

    Attributes:
        past_lens: [batch] int64.
        tree_mask: [batch, nodes, window] bool.
        positions: [batch, window] int64, only with a sliding window.
        group: Query heads per key head.
        sliding_window: Positions a query sees, itself included; 0 for all.
    """

    past_lens: ir.Value
    tree_mask: ir.Value
    positions: ir.Value | None
    group: int
    sliding_window: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeMask:
    """What the layers with one `BiasKey` share.

    Attributes:
        bias: [batch, 1, rows, past + nodes] float32, 0 where visible and -inf where not. Row
            g * nodes + n is node n for every query head g of a group. With group 1 one more row
            of zeros follows (see `LowerAttention`).
        segments: [2] int64, the sizes past and nodes.
    """

    bias: ir.Value
    segments: ir.Value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """Dimensions of the pass, each a vector of one int64."""

    past: ir.Value
    nodes: ir.Value
    tentative: ir.Value


def tree_mask(splice: Splice, key: BiasKey, past_key: ir.Value) -> TreeMask:
    """Write the nodes that compute the mask.

    Args:
        splice: Where to write.
        key: What the mask depends on.
        past_key: A layer's buffer, whose third dimension is `past`.
    """
    sizes = _sizes(splice, key, past_key)
    offset = _offset(splice, key, sizes)
    past = _table_bias(splice, key, sizes, offset)
    new = _new_bias(splice, key, sizes)
    if key.sliding_window:
        past, new = _within_window(splice, key, sizes, offset, past, new)
    bias = splice.op("Concat", past, new, axis=2)
    return TreeMask(
        bias=splice.op("Unsqueeze", _repeat(splice, bias, key.group), splice.integers(1)),
        segments=splice.op("Concat", sizes.past, sizes.nodes, axis=0),
    )


def _sizes(splice: Splice, key: BiasKey, past_key: ir.Value) -> _Sizes:
    nodes = splice.op("Shape", key.tree_mask, start=1, end=2)
    window = splice.op("Shape", key.tree_mask, start=2, end=3)
    past = splice.op("Shape", past_key, start=2, end=3)
    return _Sizes(past=past, nodes=nodes, tentative=splice.op("Sub", window, nodes))


def _offset(splice: Splice, key: BiasKey, sizes: _Sizes) -> ir.Value:
    """How far a buffer row lies behind the committed ones: [batch, past] int64, negative for committed."""
    past = splice.op("Squeeze", sizes.past)
    zero, one = (splice.constant(np.array(number, np.int64), f"int64_scalar_{number}") for number in (0, 1))
    rows = splice.op("Range", zero, past, one)
    return splice.op("Sub", rows, splice.op("Unsqueeze", key.past_lens, splice.integers(1)))


def _table_bias(splice: Splice, key: BiasKey, sizes: _Sizes, offset: ir.Value) -> ir.Value:
    """The mask over the buffer: [batch, nodes, past] float32.

    Looked up in a table per node: 0 for committed rows, the mask's columns for tentative ones,
    hidden for the rest.
    """
    tentative = splice.op("Slice", key.tree_mask, splice.integers(0), sizes.tentative, splice.integers(2))
    columns = _as_bias(splice, tentative)
    shape = splice.op("Shape", key.tree_mask, start=0, end=2)
    shape = splice.op("Concat", shape, splice.integers(1), axis=0)
    committed, hidden = (splice.op("Expand", splice.scalar(number), shape) for number in (0.0, _HIDDEN))
    table = splice.op("Concat", committed, columns, hidden, axis=2)
    last = splice.op("Add", sizes.tentative, splice.integers(1))
    index = splice.op("Max", splice.op("Add", offset, splice.integers(1)), splice.integers(0))
    index = splice.op("Unsqueeze", splice.op("Min", index, last), splice.integers(1))
    target = splice.op("Concat", splice.integers(1), sizes.nodes, splice.integers(1), axis=0)
    return splice.op("GatherElements", table, splice.op("Expand", index, target), axis=2)


def _new_bias(splice: Splice, key: BiasKey, sizes: _Sizes) -> ir.Value:
    """The mask over this pass's own rows: [batch, nodes, nodes] float32."""
    ends = splice.integers(np.iinfo(np.int64).max)
    return _as_bias(splice, splice.op("Slice", key.tree_mask, sizes.tentative, ends, splice.integers(2)))


def _as_bias(splice: Splice, visible: ir.Value) -> ir.Value:
    return splice.op("Where", visible, splice.scalar(0.0), splice.scalar(_HIDDEN))


def _within_window(
    splice: Splice, key: BiasKey, sizes: _Sizes, offset: ir.Value, past: ir.Value, new: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Hide what lies outside the sliding window, in both parts of the mask."""
    ends = splice.integers(np.iinfo(np.int64).max)
    own = splice.op("Slice", key.positions, sizes.tentative, ends, splice.integers(1))
    query = splice.op("Unsqueeze", own, splice.integers(2))
    past_positions = _past_positions(splice, key, sizes, offset)
    past = splice.op("Where", _near(splice, key, query, past_positions), past, splice.scalar(_HIDDEN))
    new = splice.op("Where", _near(splice, key, query, own), new, splice.scalar(_HIDDEN))
    return past, new


def _past_positions(splice: Splice, key: BiasKey, sizes: _Sizes, offset: ir.Value) -> ir.Value:
    """The position of each buffer row: its index when committed, else that of its column. [batch, past]."""
    last = splice.op("Sub", splice.op("Add", sizes.tentative, sizes.nodes), splice.integers(1))
    column = splice.op("Min", splice.op("Max", offset, splice.integers(0)), last)
    tentative = splice.op("GatherElements", key.positions, column, axis=1)
    committed = splice.op("Add", offset, splice.op("Unsqueeze", key.past_lens, splice.integers(1)))
    is_committed = splice.op("Less", offset, splice.integers(0))
    return splice.op("Where", is_committed, committed, tentative)


def _near(splice: Splice, key: BiasKey, query: ir.Value, keys: ir.Value) -> ir.Value:
    """Whether 0 <= query position - key position < sliding_window: [batch, nodes, keys] bool."""
    distance = splice.op("Sub", query, splice.op("Unsqueeze", keys, splice.integers(1)))
    inside = splice.op("Less", distance, splice.integers(key.sliding_window))
    return splice.op("And", inside, splice.op("GreaterOrEqual", distance, splice.integers(0)))


def _repeat(splice: Splice, bias: ir.Value, group: int) -> ir.Value:
    """Repeat the rows for each query head of a group, or add one row of zeros."""
    if group > 1:
        return splice.op("Concat", *[bias] * group, axis=1)
    return splice.op("Pad", bias, splice.integers(0, 0, 0, 0, 1, 0))
