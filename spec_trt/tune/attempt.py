"""How far down a tree of drafts a text went: what acceptance is counted by."""

from collections.abc import Sequence
from dataclasses import dataclass

from spec_trt.runtime.tree import ROOT, Tree

__all__ = ["Attempt", "RankPath", "attempt_of"]

RankPath = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Attempt:
    """What became of the drafts at one position of a text.

    Attributes:
        ranks: Of the drafted tokens that the text went on with.
        failed: Whether something else followed them than what was drafted behind them. If not, nothing was drafted
            there, or the text ends there.
    """

    ranks: RankPath
    failed: bool


def attempt_of(tree: Tree, following: Sequence[int]) -> Attempt:
    """Follow a text down a tree.

    Args:
        tree: The drafts; of all siblings none is missing, so that a node's rank is its place among them.
        following: The text behind the root, as far as it is known.
    """
    node, ranks = ROOT, list[int]()
    for token in following:
        siblings = tree.topology.children[node]
        child = tree.child(node, token)
        if child is None:
            return Attempt(tuple(ranks), failed=bool(siblings))
        ranks.append(siblings.index(child))
        node = child
    return Attempt(tuple(ranks), failed=False)
