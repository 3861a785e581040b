"""The heads' forward passes on a checkpoint's raw tensors, as the formats define them."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Draft:
    """One pass of a draft: logits over its vocabulary, and the feature it feeds back."""

    logits: Tensor
    next_features: Tensor


def medusa(tensors: Tensors, hidden_states: Tensor, lm_head: Tensor, *, prefix: str = "", layers: int = 1) -> Tensor:
    """Linear(blocks(x)) per head, stacked: [..., heads, vocab]."""
    heads = 1 + max(int(key.removeprefix(prefix).split(".")[0]) for key in tensors if key.endswith("linear.weight"))
    logits = []
    for head in range(heads):
        states = hidden_states
        for layer in range(layers):
            block = f"{prefix}{head}.{layer}.linear"
            inner = states @ tensors[f"{block}.weight"].T + tensors[f"{block}.bias"]
            states = states + inner * torch.sigmoid(inner)
        logits.append(states @ tensors.get(f"{prefix}{head}.{layers}.weight", lm_head).T)
    return torch.stack(logits, dim=-2)


def eagle(
    tensors: Tensors, embedded: Tensor, features: Tensor, lm_head: Tensor, theta: float, *, eps: float = 1e-5
) -> Draft:
    """fc(cat[embed, f]) -> a layer without input norm -> the target's lm_head."""
    states = torch.cat([embedded, features], dim=-1) @ tensors["fc.weight"].T + tensors.get("fc.bias", torch.zeros(1))
    states = states + attention(tensors, "layers.0.", states, theta)
    states = states + mlp(tensors, "layers.0.", states, eps)
    return Draft(logits=states @ lm_head.T, next_features=states)


def fuse(tensors: Tensors, features: list[Tensor], eps: float = 1e-5) -> Tensor:
    """The features side by side, normed together or each on its own where there are such norms, through fc."""
    if "fc_norm.0.weight" in tensors:
        features = [norm(tensors[f"fc_norm.{index}.weight"], part, eps) for index, part in enumerate(features)]
    joined = torch.cat(features, dim=-1)
    if "input_norm.weight" in tensors:
        joined = norm(tensors["input_norm.weight"], joined, eps)
    return joined @ tensors["fc.weight"].T


def eagle3(
    tensors: Tensors,
    embedded: Tensor,
    fused: Tensor,
    lm_head: Tensor,
    theta: float,
    *,
    first: str = "midlayer.",
    norm_before_residual: bool = False,
    norm_output: bool = False,
    more_layers: int = 0,
    eps: float = 1e-5,
) -> Draft:
    """Attention over cat[norm(embed), norm(g)], residual g, further plain layers, lm_head(norm(out))."""
    normed = norm(tensors[f"{first}hidden_norm.weight"], fused, eps)
    joined = torch.cat([norm(tensors[f"{first}input_layernorm.weight"], embedded, eps), normed], dim=-1)
    states = (normed if norm_before_residual else fused) + attention(tensors, first, joined, theta)
    states = states + mlp(tensors, first, states)
    for layer in range(1, 1 + more_layers):
        prefix = f"layers.{layer}."
        entering = norm(tensors[f"{prefix}input_layernorm.weight"], states, eps)
        states = states + attention(tensors, prefix, entering, theta)
        states = states + mlp(tensors, prefix, states)
    out = norm(tensors["norm.weight"], states, eps)
    return Draft(logits=out @ lm_head.T, next_features=out if norm_output else states)


def attention(tensors: Tensors, prefix: str, states: Tensor, theta: float, head_dim: int = 16) -> Tensor:
    """Grouped causal attention with RoPE on whole heads, one row of the mask at a time."""
    batch, nodes, _ = states.shape
    parts = {}
    for name in "qkv":
        rows = states @ tensors[f"{prefix}self_attn.{name}_proj.weight"].T
        rows = rows + tensors.get(f"{prefix}self_attn.{name}_proj.bias", torch.zeros(1))
        parts[name] = rows.view(batch, nodes, -1, head_dim)
        if f"{prefix}self_attn.{name}_norm.weight" in tensors:
            parts[name] = norm(tensors[f"{prefix}self_attn.{name}_norm.weight"], parts[name], 1e-5)
    query, key = rope(parts["q"], theta), rope(parts["k"], theta)
    groups = query.shape[2] // key.shape[2]
    key, value = key.repeat_interleave(groups, dim=2), parts["v"].repeat_interleave(groups, dim=2)
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key) * head_dim**-0.5
    hidden = torch.ones(nodes, nodes).triu(1).bool()
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    attended = torch.einsum("bhqk,bkhd->bqhd", weights, value).reshape(batch, nodes, -1)
    return attended @ tensors[f"{prefix}self_attn.o_proj.weight"].T


def rope(rows: Tensor, theta: float) -> Tensor:
    """Rotate each pair (i, i + head_dim / 2) of [batch, nodes, heads, head_dim] by its position's angle."""
    half = rows.shape[-1] // 2
    angles = torch.arange(rows.shape[1])[:, None] * theta ** (-torch.arange(half) / half)
    turned = torch.view_as_complex(torch.stack([rows[..., :half], rows[..., half:]], dim=-1))
    turned = turned * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.cat([turned.real, turned.imag], dim=-1)


def mlp(tensors: Tensors, prefix: str, states: Tensor, eps: float = 1e-5) -> Tensor:
    """The gated MLP behind its norm."""
    normed = norm(tensors[f"{prefix}post_attention_layernorm.weight"], states, eps)
    gate = functional.silu(normed @ tensors[f"{prefix}mlp.gate_proj.weight"].T)
    return (gate * (normed @ tensors[f"{prefix}mlp.up_proj.weight"].T)) @ tensors[f"{prefix}mlp.down_proj.weight"].T


def norm(weight: Tensor, states: Tensor, eps: float) -> Tensor:
    """RMSNorm."""
    return weight * states / (states.square().mean(-1, keepdim=True) + eps).sqrt()
