"""Typical acceptance: any draft that is likely enough is kept. Not lossless."""

import math
from typing import TYPE_CHECKING

import numpy as np

from spec_trt import names
from spec_trt.runtime.accept import Guarantee
from spec_trt.runtime.processors import Probabilities
from spec_trt.runtime.sampling import Sampling
from spec_trt.runtime.tree import ROOT, Tree

if TYPE_CHECKING:
    from torch import Tensor

    from spec_trt.runtime.drafters.drafter import PassOutput
    from spec_trt.runtime.sampler import Sampler

__all__ = ["TypicalAcceptance", "typical_part"]


class TypicalAcceptance:
    """Accepts the longest path of typical tokens (Cai et al. 2024, arXiv 2401.10774, section 2.3.1).

    Of equally long paths the likeliest wins. The extra token is drawn from the typical tokens behind it. What comes
    out is neither plain sampling's output nor of its law.

    Args:
        sampler: The sequence's.
    """

    needs: frozenset[str] = frozenset({names.LOGITS})
    guarantee: Guarantee = "not lossless"

    def __init__(self, sampler: "Sampler") -> None:
        self._sampler = sampler

    def accept(self, tree: Tree, out: "PassOutput") -> tuple[list[int], int]:
        """See `Acceptance.accept`."""
        path = tree.path(self._best(tree, out.tensors[names.LOGITS]))
        probs = self._typical(tree, path[-1], out.tensors[names.LOGITS])
        for node in path[1:]:
            self._sampler.record(int(tree.tokens[node]))
        extra = self._sampler.draw(probs)
        self._sampler.record(extra)
        return path, extra

    def _best(self, tree: Tree, logits: "Tensor") -> int:
        """The deepest node whose whole path is typical."""
        scores = {ROOT: 0.0}
        for node, children in enumerate(tree.topology.children):
            if children and node in scores:
                probs = self._typical(tree, node, logits)
                for child in children:
                    prob = float(probs[tree.tokens[child]])
                    if prob > 0:
                        scores[child] = scores[node] + math.log(prob)
        return max(scores, key=lambda node: (int(tree.depths[node]), scores[node]))

    def _typical(self, tree: Tree, node: int, logits: "Tensor") -> Probabilities:
        path = tree.tokens[tree.path(node)[1:]].tolist()
        return typical_part(self._sampler.probs(logits[node], path), self._sampler.sampling)


def typical_part(probs: Probabilities, sampling: Sampling) -> Probabilities:
    """A distribution with the tokens that are not typical taken out, not made to sum to 1 again.

    Typical is a probability above min(epsilon, alpha * exp(-entropy)); the likeliest token always has that.

    Args:
        probs: [vocab].
        sampling: With epsilon and alpha.
    """
    positive = probs[probs > 0]
    entropy = -float(positive @ np.log(positive))
    bound = min(sampling.typical_epsilon, sampling.typical_alpha * math.exp(-entropy))
    return np.where(probs > bound, probs, 0.0)
