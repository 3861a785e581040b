"""From hidden states to logits: the target's lm_head, whole or some of its rows, or a head's own."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from spec_trt.errors import ModelError

__all__ = ["Projection", "check_projection", "target_projection"]

_TOLERANCE = 1e-2


class Projection(nn.Module):
    """Rows of an lm_head, and what the target's family does behind it.

    Args:
        weight: [rows, hidden].
        bias: [rows], or None.
        scale: Factor on the logits (cohere, granite).
        softcap: Bound of the logits, softcap * tanh(logits / softcap) (gemma); 0 for none.
        trained: Whether the weight is the head's own, a parameter that its checkpoint holds. Otherwise it is the
            target's: frozen, and in no state dict.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        scale: float = 1.0,
        softcap: float = 0.0,
        trained: bool = False,
    ) -> None:
        super().__init__()
        self.scale, self.softcap, self.trained = scale, softcap, trained
        if trained:
            self.weight = nn.Parameter(weight)
        else:
            self.register_buffer("weight", weight.detach(), persistent=False)
        self.register_buffer("bias", None if bias is None else bias.detach(), persistent=False)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[..., hidden] -> [..., rows] logits."""
        return self.finish(nn.functional.linear(hidden_states, self.weight, self.bias))

    def finish(self, logits: Tensor) -> Tensor:
        """What the family does to the logits behind the matrix product."""
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.softcap:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return logits

    def narrowed(self, ids: Sequence[int] | Tensor) -> "Projection":
        """The same for some ids of the vocabulary, in their order."""
        rows = torch.as_tensor(ids, device=self.weight.device)
        bias = None if self.bias is None else self.bias[rows]
        return self.with_weight(self.weight.detach()[rows].clone(), bias, trained=self.trained)

    def shared(self) -> "Projection":
        """Another module on the same memory: one may be moved or cast without the other."""
        return self.with_weight(self.weight, self.bias, trained=self.trained)

    def with_weight(self, weight: Tensor, bias: Tensor | None = None, *, trained: bool = True) -> "Projection":
        """The family's scale and softcap behind another weight."""
        return Projection(weight, bias, scale=self.scale, softcap=self.softcap, trained=trained)


def target_projection(model: PreTrainedModel) -> Projection:
    """The target's own, from its lm_head and its configuration. Its weight stays the model's own memory."""
    head, config = model.get_output_embeddings(), model.config
    return Projection(
        head.weight,
        getattr(head, "bias", None),
        scale=_scale(config),
        softcap=float(getattr(config, "final_logit_softcapping", None) or 0.0),
    )


def check_projection(projection: Projection, hidden_states: Tensor, logits: Tensor) -> None:
    """Make sure that nothing of the target's path from hidden states to logits is left out.

    Args:
        projection: The target's, as `target_projection` made it.
        hidden_states: [..., hidden]: what the target gave its lm_head.
        logits: [..., vocab]: what it made of that.

    Raises:
        ModelError: The family does something else behind its lm_head, so heads on it would be wrong.
    """
    with torch.no_grad():
        difference = float((projection(hidden_states) - logits).abs().max() / max(1.0, float(logits.abs().max())))
    if not difference <= _TOLERANCE:
        raise ModelError(
            "the target computes its logits in a way that draft heads can't follow "
            f"(they differ by {difference:.2g} of the largest): expected an lm_head, a scale and a softcap"
        )


def _scale(config: PreTrainedConfig) -> float:
    if getattr(config, "logits_scaling", None):
        return 1.0 / float(config.logits_scaling)
    return float(getattr(config, "logit_scale", None) or 1.0)
