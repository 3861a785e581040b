"""What a draft head needs of the model that it drafts for."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from spec_trt.heads.projection import Projection, target_projection

__all__ = ["HeadTarget", "head_target"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTarget:
    """A target model, as heads see it; tensors are the model's own memory.

    Attributes:
        embedding: [vocab, hidden]: its token embeddings, unscaled.
        projection: Its lm_head, [vocab, hidden], and what follows it.
        layers: Of its decoder.
        rope_parameters: transformers' settings of its RoPE; None where it has none, or one per kind of layer.
        max_positions: Its context length.
    """

    embedding: Tensor
    projection: Projection
    layers: int
    rope_parameters: dict[str, Any] | None
    max_positions: int

    @property
    def vocab(self) -> int:
        """Size of the vocabulary."""
        return self.projection.weight.shape[0]

    @property
    def hidden(self) -> int:
        """Size of what the lm_head reads."""
        return self.projection.weight.shape[1]


def head_target(model: PreTrainedModel) -> HeadTarget:
    """The target side of draft heads."""
    rope = getattr(model.config, "rope_parameters", None)
    return HeadTarget(
        embedding=model.get_input_embeddings().weight.detach(),
        projection=target_projection(model),
        layers=model.config.num_hidden_layers,
        rope_parameters=dict(rope) if rope and "rope_type" in rope else None,
        max_positions=model.config.max_position_embeddings,
    )
