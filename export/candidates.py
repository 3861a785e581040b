"""The best tokens of a draft's logits, taken inside the graph: the full logits rarely have to leave it."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from spec_trt import names

__all__ = ["Candidates"]


class Candidates(nn.Module):
    """Top-k over a draft vocabulary, as ids of the target.

    Args:
        draft_vocab: Size of the draft vocabulary.
        draft_ids: The target's id of each of its rows; None where they are the same.
    """

    draft_ids: Tensor | None

    def __init__(self, draft_vocab: int, draft_ids: Sequence[int] | None) -> None:
        super().__init__()
        self.top_k = min(names.TOP_K, draft_vocab)
        # One column, as an embedding has it: that traces to a plain Gather.
        ids = None if draft_ids is None else torch.tensor(draft_ids, dtype=torch.long)[:, None]
        self.register_buffer("draft_ids", ids, persistent=False)

    def forward(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Take the best of each row.

        Args:
            logits: [..., draft_vocab].

        Returns:
            Ids of the target [..., top_k] int64, best first, and their log-probabilities over the draft vocabulary
            [..., top_k] float32.
        """
        log_probs, rows = logits.float().log_softmax(dim=-1).topk(self.top_k)
        if self.draft_ids is None:
            return rows, log_probs
        return nn.functional.embedding(rows, self.draft_ids).squeeze(-1), log_probs
