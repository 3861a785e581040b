"""A static tree on its way to a token tree: a head's candidates put in, level by level."""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from spec_trt.runtime.allowance import Allowance
from spec_trt.runtime.drafters.candidates import ROOT_INDEX, Candidates, rerank
from spec_trt.runtime.drafters.static_tree import Level, StaticTree
from spec_trt.runtime.tree import TreeBuilder

__all__ = ["CLOSED", "FilledTree"]

CLOSED = -2
"""Stands for a node behind which there is nothing."""


class FilledTree:
    """What a head has found for the paths of a static tree.

    Args:
        tree: The static tree.
        max_depth: Depth of the deepest node allowed.
        allowance: What the tree may have.
        eos_ids: Tokens after which nothing is drafted.
    """

    def __init__(self, tree: StaticTree, max_depth: int, allowance: Allowance, *, eos_ids: Collection[int]) -> None:
        self.levels = tree.first(allowance.nodes).levels[:max_depth]
        self._allowance, self._eos_ids = allowance, eos_ids
        self._found, self._places = Candidates(), dict[int, int]()
        self._newest = [ROOT_INDEX]

    def fill(self, level: Level, token_ids: NDArray[np.int64], log_probs: NDArray[np.float32]) -> None:
        """Put a level's candidates in, but for those behind the sequence's end.

        Args:
            level: The next one.
            token_ids: [nodes] int64: of the level's nodes, in their order.
            log_probs: [nodes] float32: of each, behind its parent.
        """
        newest = []
        drafted = zip(level.parents, token_ids.tolist(), log_probs.tolist(), level.places, strict=True)
        for parent, token, log_prob, place in drafted:
            index = self._newest[parent]
            if index != CLOSED:
                index = self._found.add(index, token, log_prob)
                self._places[index] = place
            newest.append(CLOSED if token in self._eos_ids else index)
        self._newest = newest

    def pays_to_go_on(self, level: Level) -> bool:
        """Whether another run of the draft model, behind the newest level, is worth its time."""
        chance = self._found.chance(self._newest[index] for index in level.inner if self._newest[index] != CLOSED)
        return chance > (self._allowance.level_chance or 0.0)

    def insert(self, builder: TreeBuilder) -> None:
        """Make a token tree of what is worth its place."""
        kept = rerank(self._found.scores, self._allowance.affordable(self._found.scores))
        self._found.insert(builder, kept, self._places)
