"""How much a drafter may draft: decided every few passes, by whoever knows what a pass costs."""

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Literal

__all__ = ["UNLIMITED", "Allowance", "BudgetName", "Size", "sizes_up_to"]


BudgetName = Literal["auto", "fixed"]
"""How trees are sized: as large as pays, or by the method's own options."""


@dataclass(frozen=True, kw_only=True)
class Allowance:
    """What one tree may have.

    Attributes:
        nodes: Nodes below the root at the most; at 0 nothing needs to be drafted.
        prices: By number of nodes below the root, from none on, how many accepted tokens pay for so many, for drafters
            that know how likely theirs are to be accepted; None where it is for their own options to say.
        level_price: How many pay for a run of the draft model behind the first.
    """

    nodes: int
    prices: Sequence[float] | None = None
    level_price: float = 0.0

    def affordable(self, scores: Sequence[float]) -> int:
        """How many of the likeliest nodes to draft.

        Args:
            scores: Of all there are, the logarithms of how likely they are to be accepted.
        """
        if self.prices is None:
            return self.nodes
        gains = accumulate(math.exp(score) for score in sorted(scores, reverse=True)[: self.nodes])
        worth = [0.0, *(gain - price for gain, price in zip(gains, self.prices[1:], strict=False))]
        return max(range(len(worth)), key=worth.__getitem__)

    @cached_property
    def least_chance(self) -> float | None:
        """How likely a node must be to be worth its place in a tree of any size."""
        if self.prices is None:
            return None
        return min((after - before for before, after in pairwise(self.prices)), default=0.0)

    @cached_property
    def level_chance(self) -> float | None:
        """How likely the nodes that a level is drafted behind must be, together, to be worth a run and a node of it."""
        if self.prices is None:
            return None
        node_price = self.prices[-1] / max(len(self.prices) - 1, 1)
        return (self.level_price + node_price) / _FOLLOWS


_FOLLOWS = 0.35
"""About how often a drafted token behind an accepted one is accepted too."""

UNLIMITED = Allowance(nodes=sys.maxsize)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A size of tree that a drafter can make good use of.

    Attributes:
        nodes: Below the root.
        levels: Runs of the draft model that it takes, behind the first.
    """

    nodes: int
    levels: int = 0


_NODES = (1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 32, 48, 64)


def sizes_up_to(nodes: int) -> list[int]:
    """Numbers of nodes from 0 to the largest, or to 64: few enough to look at all of them every few passes."""
    nodes = min(nodes, _NODES[-1])
    return sorted({0, nodes, *_below(nodes)})


def _below(nodes: int) -> Iterable[int]:
    return (size for size in _NODES if size < nodes)
