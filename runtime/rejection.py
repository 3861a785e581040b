"""Recursive rejection sampling: the lossless rule for drafts that were drawn without replacement."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from spec_trt import names
from spec_trt.runtime.accept import Guarantee
from spec_trt.runtime.processors import Probabilities
from spec_trt.runtime.tree import ROOT, Tree

if TYPE_CHECKING:
    from torch import Tensor

    from spec_trt.runtime.drafters.drafter import PassOutput
    from spec_trt.runtime.sampler import Sampler

__all__ = ["RejectionAcceptance", "drawn_children", "residual", "without"]


class RejectionAcceptance:
    """Tries a node's children in the order in which they were drawn (Jeon et al. 2024, arXiv 2402.14160).

    A child is accepted with probability min(1, p / q): q is what it was drawn from, so the earlier ones' tokens are
    taken out of it; p is what is left of the target's distribution after their rejection. When all are rejected, the
    extra token is drawn from what is left then.

    Args:
        sampler: The sequence's; the drafts' own numbers are another stream of it.
    """

    needs: frozenset[str] = frozenset({names.LOGITS})
    guarantee: Guarantee = "in law"

    def __init__(self, sampler: "Sampler") -> None:
        self._sampler = sampler

    def accept(self, tree: Tree, out: "PassOutput") -> tuple[list[int], int]:
        """See `Acceptance.accept`."""
        logits, path = out.tensors[names.LOGITS], [ROOT]
        while True:
            child, token = self._decide(tree, path[-1], logits[path[-1]])
            self._sampler.record(token)
            if child is None:
                return path, token
            path.append(child)

    def _decide(self, tree: Tree, node: int, logits: "Tensor") -> tuple[int | None, int]:
        """The child that is accepted, if one is, and the token."""
        target = self._sampler.probs(logits)
        for draw, (child, token, draft) in enumerate(drawn_children(tree, node)):
            if self._sampler.uniform("accept", draw) * draft[token] < target[token]:
                return child, token
            left = residual(target, draft)
            if left is None:
                break
            target = left
        return None, self._sampler.draw(target)


def drawn_children(tree: Tree, node: int) -> Iterator[tuple[int, int, Probabilities]]:
    """A node's children in the order in which they were drawn: child, token, and what it was drawn from."""
    children = tree.topology.children[node]
    left = tree.draft_probs[node] if children else np.empty(0)
    for child in children:
        token = int(tree.tokens[child])
        yield child, token, left
        left = without(left, token)


def residual(target: Probabilities, draft: Probabilities) -> Probabilities | None:
    """What the target has more of than the draft, as a distribution; None where rounding leaves nothing."""
    left = np.maximum(target - draft, 0.0)
    mass = left.sum()
    return left / mass if mass > 0 else None


def without(probs: Probabilities, token: int) -> Probabilities:
    """A distribution with a token taken out; all 0 where there was no other."""
    left = probs.copy()
    left[token] = 0.0
    mass = left.sum()
    return left / mass if mass > 0 else left
