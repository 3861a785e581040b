"""Medusa heads: residual blocks on the target's last hidden state, each head one token further ahead."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spec_trt.errors import ConfigError
from spec_trt.heads.projection import Projection

__all__ = ["MedusaConfig", "MedusaHeads", "ResidualBlock"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MedusaConfig:
    """The shape of a set of heads.

    Attributes:
        hidden: Size of a hidden state.
        heads: How many tokens ahead are drafted; head h (from 0) at position t predicts the token at t + 2 + h.
        layers: Residual blocks per head.
        draft_vocab: Rows of the projections.
        shared_projection: Whether all heads use the target's lm_head (Medusa v2), not one of their own (v1).
    """

    hidden: int
    heads: int
    layers: int
    draft_vocab: int
    shared_projection: bool

    def __post_init__(self) -> None:
        for name in ("hidden", "heads", "layers", "draft_vocab"):
            if getattr(self, name) < 1:
                raise ConfigError(f"Medusa heads need {name} >= 1, found {getattr(self, name)}")


class ResidualBlock(nn.Module):
    """x + SiLU(Wx + b); the identity when new (Cai et al. 2024, arXiv 2401.10774, section 2.1.1)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, hidden)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[..., hidden] -> [..., hidden]."""
        return hidden_states + nn.functional.silu(self.linear(hidden_states))


class MedusaHeads(nn.Module):
    """All heads of a target.

    Args:
        config: Their shape.
        projections: One for all heads, or one per head, as `config.shared_projection` says.
    """

    def __init__(self, config: MedusaConfig, projections: Sequence[Projection]) -> None:
        super().__init__()
        expected = 1 if config.shared_projection else config.heads
        if len(projections) != expected:
            raise ConfigError(f"these Medusa heads need {expected} projections, found {len(projections)}")
        self.config = config
        self.heads = nn.ModuleList(
            nn.Sequential(*(ResidualBlock(config.hidden) for _ in range(config.layers))) for _ in range(config.heads)
        )
        self.projections = nn.ModuleList(projections)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """The logits of every head.

        Args:
            hidden_states: [..., hidden], after the target's final norm.

        Returns:
            [..., heads, draft_vocab].
        """
        states = [head(hidden_states) for head in self.heads]
        if self.config.shared_projection:
            logits: Tensor = self.projections[0](torch.stack(states, dim=-2))
            return logits
        pairs = zip(self.projections, states, strict=True)
        return torch.stack([projection(state) for projection, state in pairs], dim=-2)
