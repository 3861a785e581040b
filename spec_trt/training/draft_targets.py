"""From the target's vocabulary to a draft's, and what a head is measured by."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spec_trt.names import TOP_K

__all__ = ["Accuracy", "DraftIndex", "join", "rank_hits"]


class DraftIndex(nn.Module):
    """The draft's row of every id of the target; -1 for ids that it can't draft."""

    rows: Tensor

    def __init__(self, draft_ids: Sequence[int] | None, vocab: int) -> None:
        super().__init__()
        rows = torch.arange(vocab)
        if draft_ids is not None:
            rows = torch.full((vocab,), -1)
            rows[torch.tensor(draft_ids)] = torch.arange(len(draft_ids))
        self.register_buffer("rows", rows, persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Ids of the target (-1 stays) -> rows of the draft."""
        return torch.where(ids < 0, ids, self.rows[ids.clamp(min=0)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """What a head gets right, per head or per unrolled step.

    Attributes:
        hits: [heads or steps, TOP_K]: rows whose token is the best, the second best, ...
        rows: [heads or steps]: all rows, those with a token outside the draft vocabulary included.
        loss: [heads or steps]: summed cross-entropy of the rows inside it.
    """

    hits: Tensor
    rows: Tensor
    loss: Tensor


def rank_hits(logits: Tensor, wanted: Tensor) -> Tensor:
    """Which of a row's best tokens is the wanted one: [rows, TOP_K] bool.

    Args:
        logits: [rows, draft_vocab].
        wanted: [rows]; -1 is never hit.
    """
    best = logits.topk(min(TOP_K, logits.shape[-1]), dim=-1).indices
    return nn.functional.pad(best == wanted[:, None], (0, TOP_K - best.shape[-1]))


def join(parts: Sequence[Accuracy]) -> Accuracy:
    """Several heads' or steps' accuracies as one: theirs have no leading axis."""
    return Accuracy(
        hits=torch.stack([part.hits for part in parts]),
        rows=torch.stack([part.rows for part in parts]),
        loss=torch.stack([part.loss for part in parts]),
    )
