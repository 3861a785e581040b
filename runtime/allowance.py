"""How much a drafter may draft: decided before every pass, by whoever knows what a pass costs."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

__all__ = ["UNLIMITED", "Allowance", "BudgetName", "Size", "sizes_up_to"]


BudgetName = Literal["auto", "fixed"]
"""How trees are sized: as large as pays, or by the method's own options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What one tree may have.

    Attributes:
        nodes: Nodes below the root at the most; at 0 nothing needs to be drafted.
        node_price: How likely to be accepted a node must be to be worth its place, for drafters that know how likely
            theirs are; None where it is for their own options to say.
        level_price: How many accepted tokens a run of the draft model must gain to be worth its time; None likewise.
    """

    nodes: int
    node_price: float | None = None
    level_price: float | None = None


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
    """Numbers of nodes from 0 to the largest, few enough to look at all of them before every pass."""
    return sorted({0, nodes, *_below(nodes)})


def _below(nodes: int) -> Iterable[int]:
    return (size for size in _NODES if size < nodes)
