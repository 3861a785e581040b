"""Drafted nodes, before it is known which of them are worth a place in the tree."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from spec_trt.runtime.tree import ROOT, TreeBuilder

__all__ = ["ROOT_INDEX", "Candidates", "rerank"]

ROOT_INDEX = -1
"""The root's, among candidates."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Drafted nodes, parents first: lists, which are quicker to go through than arrays of a few numbers.

    Attributes:
        tokens: [candidates].
        parents: [candidates]: the parent's index, `ROOT_INDEX` for the root.
        scores: [candidates]: summed log-probabilities from the root on.
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, parent: int, token: int, log_prob: float) -> int:
        """Add a token behind a node; a log-probability that rounding has made positive counts as 0.

        Returns:
            Its index.
        """
        score = self.scores[parent] if parent != ROOT_INDEX else 0.0
        self.tokens.append(token)
        self.parents.append(parent)
        self.scores.append(score + min(log_prob, 0.0))
        return len(self.tokens) - 1

    def chance(self, indices: Iterable[int]) -> float:
        """How likely it is that one of some nodes of a level is accepted, by the draft's own reckoning."""
        return sum(math.exp(self.scores[index]) for index in indices)

    def insert(self, builder: TreeBuilder, kept: Sequence[int], places: Mapping[int, int]) -> None:
        """Make nodes of some candidates.

        Args:
            builder: The tree, its root alone.
            kept: Their indices, ascending, every parent among them.
            places: Of each of them, its node's place: see `Tree`.
        """
        nodes = {ROOT_INDEX: ROOT}
        for index in kept:
            node = nodes[index] = builder.add(nodes[self.parents[index]], self.tokens[index])
            builder.places[node], builder.chances[node] = places[index], math.exp(self.scores[index])


def rerank(scores: Sequence[float], count: int) -> list[int]:
    """The best-scored candidates, ties to the earlier, so that a parent outranks its children.

    Args:
        scores: [candidates], level by level, none above its parent's.
        count: How many are wanted.

    Returns:
        [min(count, candidates)] of their indices, ascending.
    """
    return sorted(sorted(range(len(scores)), key=lambda index: -scores[index])[:count])
