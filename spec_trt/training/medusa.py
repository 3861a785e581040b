"""Medusa-1's loss: each head learns the tokens of the text, further ahead than the base predicts."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from spec_trt.heads.medusa import MedusaConfig, MedusaHeads
from spec_trt.heads.projection import Projection
from spec_trt.heads.target import HeadTarget
from spec_trt.training.base import FrozenBase, shift_left
from spec_trt.training.config import MedusaSettings
from spec_trt.training.draft_targets import Accuracy, DraftIndex, join, rank_hits
from spec_trt.training.head_module import HeadModule
from spec_trt.training.row_loss import chunked, cross_entropy_sum

__all__ = ["MedusaTraining", "new_medusa"]


def new_medusa(target: HeadTarget, settings: MedusaSettings, draft_ids: Sequence[int] | None) -> MedusaHeads:
    """Heads over the target's own lm_head, each the identity at first."""
    projection = target.projection.shared() if draft_ids is None else target.projection.narrowed(draft_ids)
    config = MedusaConfig(
        hidden=target.hidden,
        heads=settings.heads,
        layers=settings.layers,
        draft_vocab=projection.weight.shape[0],
        shared_projection=True,
    )
    return MedusaHeads(config, [projection])


class MedusaTraining(HeadModule):
    """Heads, their frozen base, and the loss (Cai et al. 2024, arXiv 2401.10774, section 2.2.1).

    Args:
        heads: To train.
        base: What they read; in no state dict.
        draft_ids: The target's id of each row of the projection; None for all.
        settings: Of the loss.
        bf16: Whether matrix products are computed in bf16.
    """

    def __init__(
        self,
        heads: MedusaHeads,
        base: FrozenBase,
        draft_ids: Sequence[int] | None,
        settings: MedusaSettings,
        bf16: bool,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.index_of = DraftIndex(draft_ids, base.projection.weight.shape[0])
        self.labels = [f"head {head}" for head in range(settings.heads)]
        self.projection = cast(Projection, heads.projections[0])
        self._base = base
        self._settings = settings
        self._bf16 = bf16

    def forward(self, input_ids: Tensor, attention_mask: Tensor, loss_mask: Tensor, index: Tensor) -> dict[str, Tensor]:
        """The loss of a batch, right-padded: [batch, nodes] each, and the sequences' [batch] places."""
        hidden_states = self._base(input_ids, attention_mask, loss_mask, index).hidden_states
        with torch.autocast(input_ids.device.type, torch.bfloat16, enabled=self._bf16):
            return {"loss": self.loss(hidden_states, input_ids, loss_mask)}

    def loss(self, hidden_states: Tensor, input_ids: Tensor, loss_mask: Tensor) -> Tensor:
        """The heads' weighted loss, given the base's states [batch, nodes, hidden]."""
        losses = [
            self._settings.decay**head * self._head_loss(head, hidden_states, input_ids, loss_mask)
            for head in range(self._settings.heads)
        ]
        return torch.stack(losses).sum()

    def _head_loss(self, head: int, hidden_states: Tensor, input_ids: Tensor, loss_mask: Tensor) -> Tensor:
        states, wanted = self._rows(head, hidden_states, input_ids, loss_mask)
        inside = wanted >= 0
        return self._cross_entropy(head, states[inside], wanted[inside]) / max(1, int(inside.sum()))

    def _rows(self, head: int, hidden_states: Tensor, input_ids: Tensor, loss_mask: Tensor) -> tuple[Tensor, Tensor]:
        """The states [rows, hidden] that a head learns from, and the draft rows [rows] of its labels."""
        rows = shift_left(loss_mask, 2 + head)
        return hidden_states[rows], self.index_of(shift_left(input_ids, 2 + head)[rows])

    def _cross_entropy(self, head: int, states: Tensor, wanted: Tensor) -> Tensor:
        every = torch.arange(len(wanted), device=wanted.device)
        return cross_entropy_sum(self.heads.heads[head](states), self.projection, wanted, every)

    @torch.no_grad()
    def measure(self, input_ids: Tensor, attention_mask: Tensor, loss_mask: Tensor, index: Tensor) -> Accuracy:
        """Compare the heads' best tokens with the text's."""
        hidden_states = self._base(input_ids, attention_mask, loss_mask, index).hidden_states
        with torch.autocast(input_ids.device.type, torch.bfloat16, enabled=self._bf16):
            return join(self.accuracies(hidden_states, input_ids, loss_mask))

    def accuracies(self, hidden_states: Tensor, input_ids: Tensor, loss_mask: Tensor) -> list[Accuracy]:
        """Each head's accuracy, given the base's states [batch, nodes, hidden]."""
        heads = range(self._settings.heads)
        return [self._head_accuracy(head, hidden_states, input_ids, loss_mask) for head in heads]

    def _head_accuracy(self, head: int, hidden_states: Tensor, input_ids: Tensor, loss_mask: Tensor) -> Accuracy:
        states, wanted = self._rows(head, hidden_states, input_ids, loss_mask)
        outputs = self.heads.heads[head](states)
        places = torch.arange(len(wanted), device=wanted.device)
        hits = chunked(lambda part: rank_hits(self.projection(outputs[part]), wanted[part]), places)
        loss = self._cross_entropy(head, states[wanted >= 0], wanted[wanted >= 0])
        return Accuracy(hits=hits.sum(0), rows=torch.tensor(len(wanted), device=wanted.device), loss=loss)
