"""The attention of the training-time test, in which a draft reads its own outputs (arXiv 2503.01840, section 3.2)."""

import torch
from torch import Tensor, nn

__all__ = ["UnrollAttention"]


class UnrollAttention:
    """The `Attend` of one forward pass of training; each step calls it once per layer, in order.

    In step 0 a query at column t sees the keys of columns up to t. In step i it sees the same keys of
    step 0, and of steps 1 to i only those of its own column.
    """

    def __init__(self) -> None:
        self._keys: dict[int, list[Tensor]] = {}
        self._values: dict[int, list[Tensor]] = {}

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend, and keep the step's rows for the steps to come."""
        keys, values = self._keys.setdefault(layer, []), self._values.setdefault(layer, [])
        keys.append(key)
        values.append(value)
        if len(keys) == 1:
            return nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return _attend_own_column(query, keys, values)


def _attend_own_column(query: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Scores of step 0 in full, those of later steps elementwise; one softmax over both.

    Args:
        query: [batch, heads, nodes, head_dim].
        keys: One [batch, kv_heads, nodes, head_dim] per step.
        values: Likewise.
    """
    batch, heads, nodes, head_dim = query.shape
    kv_heads = keys[0].shape[1]
    grouped = (query * head_dim**-0.5).reshape(batch, kv_heads, heads // kv_heads, nodes, head_dim)
    rows = grouped.reshape(batch, kv_heads, -1, head_dim)  # grouped heads share keys: they become rows
    causal = (rows @ keys[0].transpose(-1, -2)).reshape(*grouped.shape[:4], nodes)
    hidden = torch.ones(nodes, nodes, dtype=torch.bool, device=query.device).triu(1)
    own = [(grouped * key.unsqueeze(2)).sum(-1, keepdim=True) for key in keys[1:]]
    scores = torch.cat([causal.masked_fill(hidden, float("-inf")), *own], dim=-1)
    weights = scores.softmax(dim=-1, dtype=torch.float32).to(values[0].dtype)
    first = weights[..., :nodes].reshape(batch, kv_heads, -1, nodes) @ values[0]
    out = first.reshape(grouped.shape)
    for index, later in enumerate(values[1:]):
        out = out + weights[..., nodes + index, None] * later.unsqueeze(2)
    return out.reshape(query.shape)
