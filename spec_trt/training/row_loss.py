"""Cross-entropy over a large vocabulary, some rows at a time, so that no logits outlive their rows."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from spec_trt.heads.projection import Projection

__all__ = ["chunked", "cross_entropy_sum"]

_ROWS = 128
"""Rows at a time: their logits stay in a processor's cache."""


def chunked(function: Callable[[Tensor], Tensor], rows: Tensor, size: int = _ROWS) -> Tensor:
    """Apply a function of rows to some of them at a time, and join what it gives."""
    return torch.cat([function(part) for part in torch.split(rows, size)]) if len(rows) else function(rows)


def cross_entropy_sum(hidden_states: Tensor, projection: Projection, target: Tensor, pick: Tensor) -> Tensor:
    """The summed cross-entropy of a frozen projection's logits.

    Args:
        hidden_states: [rows, hidden]: what the projection reads.
        projection: The target's rows, frozen.
        target: [n] ids, or [n, draft_vocab] distributions.
        pick: [rows]: which of the n each row is compared with.
    """
    apply = cast(Callable[..., Tensor], _FrozenCrossEntropy.apply)
    return apply(hidden_states, projection, target, pick)


class _FrozenCrossEntropy(torch.autograd.Function):
    """Finds the gradient of the hidden states in the forward pass: only they need one."""

    @staticmethod
    def forward(ctx: Any, hidden_states: Tensor, projection: Projection, target: Tensor, pick: Tensor) -> Tensor:  # noqa: ANN401
        total = torch.zeros((), dtype=torch.float32, device=hidden_states.device)
        gradient = torch.empty_like(hidden_states)
        for start in range(0, len(hidden_states), _ROWS):
            part = slice(start, start + _ROWS)
            with torch.enable_grad():
                rows = hidden_states[part].detach().requires_grad_()
                wanted = target[pick[part]]
                wanted = wanted.float() if wanted.ndim == 2 else wanted
                loss = nn.functional.cross_entropy(projection(rows).float(), wanted, reduction="sum")
            gradient[part] = torch.autograd.grad(loss, rows)[0]
            total += loss.detach()
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:  # noqa: ANN401
        return ctx.saved_tensors[0] * gradients[0].to(ctx.saved_tensors[0].dtype), None, None, None
