"""The executable definition of `spec_trt::TreeAttention`, in NumPy.

    TreeAttention(query, key, value, past_key, past_value, past_lens, tree_mask[, positions]) -> out

    query                  [batch, heads, nodes, head_dim]     after RoPE
    key, value             [batch, kv_heads, nodes, head_dim]  this pass's new rows
    past_key, past_value   [batch, kv_heads, past, head_dim]   the cache buffer, valid or not
    past_lens              [batch] int64                       committed rows, per sequence
    tree_mask              [batch, nodes, window] bool         visibility of the last `window` >= nodes keys
    positions              [batch, window] int64               of each column; with sliding_window only
    out                    [batch, heads, nodes, head_dim]

Which keys a node sees:

- buffer rows r < past_lens: all of them;
- buffer rows past_lens <= r < past_lens + (window - nodes), the *tentative* rows: as the mask's
  first window - nodes columns say;
- this pass's own rows: as the mask's last `nodes` columns say. Their diagonal is always true,
  padding nodes included, so no node is ever blind;
- nothing else.

With `sliding_window`, a key must also satisfy 0 <= query position - key position < sliding_window;
row r < past_lens has position r, every other key the position of its column. Scores are
query @ key * scale, bounded by softcap * tanh(scores / softcap) where `softcap` is set. Query head h
reads key head h // (heads / kv_heads).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["UNLIMITED_WINDOW", "tree_attention", "visible_keys"]

Array = NDArray[Any]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]

# The sliding_window of a layer that has none, in a model where other layers have one.
UNLIMITED_WINDOW = 2**31 - 1


def tree_attention(
    query: Array,
    key: Array,
    value: Array,
    past_key: Array,
    past_value: Array,
    past_lens: Integers,
    tree_mask: Mask,
    positions: Integers | None = None,
    *,
    scale: float,
    softcap: float = 0.0,
    sliding_window: int = 0,
) -> Array:
    """Attend from every node of every tree to the keys that it may see.

    Args:
        query: [batch, heads, nodes, head_dim].
        key: [batch, kv_heads, nodes, head_dim].
        value: As `key`.
        past_key: [batch, kv_heads, past, head_dim].
        past_value: As `past_key`.
        past_lens: [batch].
        tree_mask: [batch, nodes, window].
        positions: [batch, window]; needed with `sliding_window`.
        scale: Factor on the scores.
        softcap: Bound of the scores; 0 for none.
        sliding_window: Positions a node sees, its own included; 0 for all.

    Returns:
        [batch, heads, nodes, head_dim], in the query's dtype.
    """
    group = query.shape[1] // key.shape[1]
    keys = np.concatenate([past_key, key], axis=2).repeat(group, axis=1)
    values = np.concatenate([past_value, value], axis=2).repeat(group, axis=1)
    visible = visible_keys(past_key.shape[2], past_lens, tree_mask, positions, sliding_window)
    scores = query @ keys.swapaxes(2, 3) * scale
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    out: Array = (_softmax(np.where(visible[:, None], scores, -np.inf)) @ values).astype(query.dtype)
    return out


def visible_keys(
    past: int,
    past_lens: Integers,
    tree_mask: Mask,
    positions: Integers | None = None,
    sliding_window: int = 0,
) -> Mask:
    """Say which of the buffer's `past` rows, then of the new rows, each node sees.

    Returns:
        [batch, nodes, past + nodes].
    """
    batch, nodes, window = tree_mask.shape
    tentative = window - nodes
    visible = np.zeros((batch, nodes, past + nodes), dtype=np.bool_)
    position = np.zeros((batch, past + nodes), dtype=np.int64)
    for sequence, committed in enumerate(past_lens):
        for row in range(past + nodes):
            column = row - past + tentative if row >= past else row - committed
            if column < 0:
                visible[sequence, :, row] = True
                position[sequence, row] = row
            elif row >= past or column < tentative:
                visible[sequence, :, row] = tree_mask[sequence, :, column]
                position[sequence, row] = 0 if positions is None else positions[sequence, column]
    if sliding_window:
        distance = position[:, past:, None] - position[:, None, :]
        visible &= (distance >= 0) & (distance < sliding_window)
    return visible


def _softmax(scores: Array) -> Array:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    result: Array = weights / weights.sum(axis=-1, keepdims=True)
    return result
