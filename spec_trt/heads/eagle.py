"""The EAGLE draft model: a decoder layer over the target's features and the tokens that followed them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

from spec_trt.errors import ConfigError
from spec_trt.heads.projection import Projection

__all__ = [
    "Attend",
    "CosSin",
    "DraftAttention",
    "DraftLayer",
    "DraftOutput",
    "EagleConfig",
    "EagleDraft",
    "FusedDraftLayer",
    "PlainDraftLayer",
]

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, query [batch, heads, nodes, head_dim], key and value [batch, kv_heads, nodes, head_dim]) -> like query.

Query and key come after RoPE. Export writes the op and keeps the rows, training applies its own mask.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleConfig:
    """The shape of a draft model, and where the public variants differ.

    Attributes:
        version: 1 for EAGLE and EAGLE-2 (one feature, no input norm), 3 for EAGLE-3 (fused features).
        hidden: Size of the draft's hidden states.
        intermediate: Size of its MLP.
        heads: Of queries.
        kv_heads: Of keys and values.
        head_dim: Of queries, keys and values.
        target_hidden: Size of one of the target's features.
        feature_layers: EAGLE-3: the target's layers whose inputs are the features; empty for version 1.
        draft_vocab: Rows of its lm_head.
        rope_parameters: transformers' RoPE settings: the target's.
        max_positions: The target's context length.
        layers: Decoder layers; those behind the first are plain ones.
        fc_bias: Version 1: whether `fc` has a bias.
        qkv_bias: Whether q, k and v have biases.
        output_bias: Whether the attention's output projection has one.
        qk_norm: Whether queries and keys are normed per head (qwen3).
        rms_norm_eps: Of all norms.
        hidden_act: The MLP's activation.
        norm_before_residual: EAGLE-3: whether the residual is the normed feature.
        norm_before_fc: EAGLE-3: whether one norm precedes `fc`.
        fc_norm: EAGLE-3: whether each feature has a norm of its own before `fc`.
        norm_output: EAGLE-3: whether the feature fed back is the normed output.
    """

    version: Literal[1, 3]
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    target_hidden: int
    draft_vocab: int
    rope_parameters: dict[str, Any]
    max_positions: int
    feature_layers: tuple[int, ...] = ()
    layers: int = 1
    fc_bias: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False

    def __post_init__(self) -> None:
        if self.norm_before_fc and self.fc_norm:
            raise ConfigError("an EAGLE-3 head has either norm_before_fc or fc_norm, found both")
        if self.heads % self.kv_heads:
            raise ConfigError(f"{self.heads} heads can't share {self.kv_heads} key-value heads evenly")
        if self.version == 1 and self.hidden != self.target_hidden:
            raise ConfigError(f"an EAGLE head is as wide as its target: found {self.hidden} and {self.target_hidden}")

    def to_llama(self) -> LlamaConfig:
        """What transformers' own parts of the layer are made from; a draft rotates whole heads, whatever the target."""
        rope = {name: value for name, value in self.rope_parameters.items() if name != "partial_rotary_factor"}
        return LlamaConfig(
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            hidden_act=self.hidden_act,
            rope_parameters=rope,
            max_position_embeddings=self.max_positions,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOutput:
    """What one pass of the draft gives.

    Attributes:
        logits: [batch, nodes, draft_vocab]: of the token after the one a row was given.
        next_features: [batch, nodes, hidden]: stands in for the target's feature there.
    """

    logits: Tensor
    next_features: Tensor


class EagleDraft(nn.Module):
    """EAGLE (Li et al. 2024, arXiv 2401.15077) and EAGLE-3 (arXiv 2503.01840) as one module.

    Row t holds feature f_t and the token at t + 1, has RoPE position t and predicts the token at t + 2.

    Args:
        config: Shape and variant.
        embedding: [vocab, hidden] of the tokens; frozen, and in no state dict.
        projection: The target's lm_head or the draft's own, `draft_vocab` rows.
    """

    embedding: Tensor

    def __init__(self, config: EagleConfig, embedding: Tensor, projection: Projection) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("embedding", embedding.detach(), persistent=False)
        self.projection = projection
        self.rotary = LlamaRotaryEmbedding(config.to_llama())
        if config.version == 1:
            self.fc = nn.Linear(2 * config.hidden, config.hidden, bias=config.fc_bias)
        else:
            self._add_fusion()
        first = DraftLayer if config.version == 1 else FusedDraftLayer
        self.layers = nn.ModuleList([first(config), *(PlainDraftLayer(config) for _ in range(config.layers - 1))])

    def _add_fusion(self) -> None:
        config = self.config
        count = len(config.feature_layers)
        self.fc = nn.Linear(count * config.target_hidden, config.hidden, bias=False)
        self.norm = LlamaRMSNorm(config.hidden, config.rms_norm_eps)
        if config.norm_before_fc:
            self.input_norm = LlamaRMSNorm(count * config.target_hidden, config.rms_norm_eps)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(LlamaRMSNorm(config.target_hidden, config.rms_norm_eps) for _ in range(count))

    def fuse(self, features: Tensor) -> Tensor:
        """EAGLE-3: the target's features as one; EAGLE's only feature as it is.

        Args:
            features: [batch, nodes, k * target_hidden], the k features side by side.

        Returns:
            [batch, nodes, hidden].
        """
        if self.config.version == 1:
            return features
        if self.config.norm_before_fc:
            features = self.input_norm(features)
        if self.config.fc_norm:
            parts = torch.split(features, self.config.target_hidden, dim=-1)
            features = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        fused: Tensor = self.fc(features)
        return fused

    def forward(self, input_ids: Tensor, features: Tensor, position_ids: Tensor, attend: Attend) -> DraftOutput:
        """Draft one token behind every row.

        Args:
            input_ids: [batch, nodes]: the token that followed each feature.
            features: [batch, nodes, hidden]: fused ones of the target, or the draft's own `next_features`.
            position_ids: [batch, nodes]: positions of the features, not of the tokens.
            attend: The attention.
        """
        states = self.run_layers(input_ids, features, position_ids, attend)
        to_project, next_features = self.read_out(states)
        return DraftOutput(logits=self.projection(to_project), next_features=next_features)

    def run_layers(self, input_ids: Tensor, features: Tensor, position_ids: Tensor, attend: Attend) -> Tensor:
        """What the last layer gives, [batch, nodes, hidden], for the arguments of `forward`."""
        embedded = nn.functional.embedding(input_ids, self.embedding)
        cos_sin = self.rotary(embedded, position_ids)
        if self.config.version == 1:
            states = self.fc(torch.cat([embedded, features], dim=-1))
            states = self.layers[0](states, cos_sin, attend, 0)
        else:
            states = self.layers[0](embedded, features, cos_sin, attend)
        for index, layer in enumerate(self.layers[1:], start=1):
            states = layer(states, cos_sin, attend, index)
        return cast(Tensor, states)

    def read_out(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """From the last layer's output to what the projection reads, and to the features fed back."""
        if self.config.version == 1:
            return states, states
        normed = self.norm(states)
        return normed, normed if self.config.norm_output else states


CosSin = tuple[Tensor, Tensor]


class DraftAttention(nn.Module):
    """Attention of a draft layer, its input `width` wide."""

    def __init__(self, config: EagleConfig, width: int) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.q_proj = nn.Linear(width, config.heads * config.head_dim, bias=config.qkv_bias)
        self.k_proj = nn.Linear(width, config.kv_heads * config.head_dim, bias=config.qkv_bias)
        self.v_proj = nn.Linear(width, config.kv_heads * config.head_dim, bias=config.qkv_bias)
        self.o_proj = nn.Linear(config.heads * config.head_dim, config.hidden, bias=config.output_bias)
        if config.qk_norm:
            self.q_norm = LlamaRMSNorm(config.head_dim, config.rms_norm_eps)
            self.k_norm = LlamaRMSNorm(config.head_dim, config.rms_norm_eps)
        self.qk_norm = config.qk_norm

    def forward(self, states: Tensor, cos_sin: CosSin, attend: Attend, layer: int) -> Tensor:
        """[batch, nodes, width] -> [batch, nodes, hidden]."""
        query, key, value = (self._split(project(states)) for project in (self.q_proj, self.k_proj, self.v_proj))
        if self.qk_norm:
            query, key = self.q_norm(query), self.k_norm(key)
        query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        query, key = apply_rotary_pos_emb(query, key, *cos_sin)
        out = attend(layer, query, key, value).transpose(1, 2)
        attended: Tensor = self.o_proj(out.reshape(*out.shape[:2], -1))
        return attended

    def _split(self, states: Tensor) -> Tensor:
        return states.reshape(*states.shape[:-1], -1, self.head_dim)


class DraftLayer(nn.Module):
    """EAGLE's layer: attention without an input norm, then an ordinary MLP."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.self_attn = DraftAttention(config, config.hidden)
        self.mlp = LlamaMLP(config.to_llama())
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden, config.rms_norm_eps)

    def forward(self, states: Tensor, cos_sin: CosSin, attend: Attend, layer: int) -> Tensor:
        """[batch, nodes, hidden] -> [batch, nodes, hidden]."""
        states = states + self.self_attn(states, cos_sin, attend, layer)
        out: Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return out


class PlainDraftLayer(DraftLayer):
    """A further layer of a deeper draft (speculators): an ordinary decoder layer."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__(config)
        self.input_layernorm = LlamaRMSNorm(config.hidden, config.rms_norm_eps)

    def forward(self, states: Tensor, cos_sin: CosSin, attend: Attend, layer: int) -> Tensor:
        """[batch, nodes, hidden] -> [batch, nodes, hidden]."""
        states = states + self.self_attn(self.input_layernorm(states), cos_sin, attend, layer)
        out: Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return out


class FusedDraftLayer(nn.Module):
    """EAGLE-3's layer: attention reads embedding and feature side by side."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.norm_before_residual = config.norm_before_residual
        self.input_layernorm = LlamaRMSNorm(config.hidden, config.rms_norm_eps)
        self.hidden_norm = LlamaRMSNorm(config.hidden, config.rms_norm_eps)
        self.self_attn = DraftAttention(config, 2 * config.hidden)
        self.mlp = LlamaMLP(config.to_llama())
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden, config.rms_norm_eps)

    def forward(self, embedded: Tensor, features: Tensor, cos_sin: CosSin, attend: Attend) -> Tensor:
        """Embeddings and features [batch, nodes, hidden] -> [batch, nodes, hidden]."""
        normed = self.hidden_norm(features)
        residual = normed if self.norm_before_residual else features
        joined = torch.cat([self.input_layernorm(embedded), normed], dim=-1)
        states = residual + self.self_attn(joined, cos_sin, attend, 0)
        out: Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return out
