"""`TreeAttention` computed in PyTorch: what the exported graph is compared with."""

import torch
from torch import Tensor

from spec_trt.export.attention import AttentionCall

__all__ = ["reference"]


def reference(call: AttentionCall) -> Tensor:
    """Run the op; `spec_trt.plugins.tree_attention.reference` defines it.

    Softmax is taken in float32, as transformers' eager attention does.
    """
    group = call.query.shape[1] // call.key.shape[1]
    keys = torch.cat([call.past_key, call.key], dim=2).repeat_interleave(group, dim=1)
    values = torch.cat([call.past_value, call.value], dim=2).repeat_interleave(group, dim=1)
    scores = (call.query @ keys.transpose(2, 3)).float() * call.scale
    if call.softcap:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    scores = scores.masked_fill(~_visible(call)[:, None], float("-inf"))
    return scores.softmax(dim=-1).to(values.dtype) @ values


def _visible(call: AttentionCall) -> Tensor:
    """Which keys each node sees: [batch, nodes, past + nodes]."""
    nodes, window = call.tree_mask.shape[1:]
    past, tentative = call.past_key.shape[2], window - nodes
    row = torch.arange(past)
    column = row - call.past_lens[:, None]  # [batch, past]
    inside = column.clamp(0, window - 1)
    drafted = call.tree_mask.gather(2, inside[:, None].expand(-1, nodes, -1)) & (column < tentative)[:, None]
    visible = torch.cat([(column < 0)[:, None] | drafted, call.tree_mask[:, :, tentative:]], dim=2)
    if call.positions is None:
        return visible
    own = call.positions[:, tentative:]
    keys = torch.cat([torch.where(column < 0, row, call.positions.gather(1, inside)), own], dim=1)
    distance = own[:, :, None] - keys[:, None, :]
    return visible & (distance >= 0) & (distance < call.sliding_window)
