"""Fitting a tree to generations."""

from collections.abc import Sequence

from spec_trt.tune.attempt import RankPath
from spec_trt.tune.best_tree import best_tree
from spec_trt.tune.reach import reach_of
from spec_trt.tune.replay import replay
from spec_trt.tune.trace import Trace
from spec_trt.tune.tree_cost import TreeCost

__all__ = ["fit_tree", "replayed_speedup"]

_ROUNDS = 16


def fit_tree(
    traces: Sequence[Trace],
    default: Sequence[RankPath],
    candidates: Sequence[RankPath],
    cost: TreeCost,
    *,
    nodes: int,
) -> list[RankPath]:
    """The best tree for what its own passes would have met.

    Where passes begin depends on the tree: behind a token that it did not draft, so that drafts fail there more often
    than elsewhere. So acceptance is counted where the passes of a tree begin, `best_tree` solves for it, and so on with
    the tree found, until one comes again. Of all of them, the default tree included, the one that would have been
    quickest in these generations is kept.

    Args:
        traces: Generations in which the candidates were drafted at every position.
        default: The tree to begin with.
        candidates: What to choose from, parents first.
        cost: The method's.
        nodes: Below the root, at the most.

    Returns:
        Paths of ranks, those that are accepted most often first.
    """
    trees, newest = list[list[RankPath]](), list(default)
    while newest not in trees and len(trees) < _ROUNDS:
        trees.append(newest)
        newest = best_tree(reach_of(replay(traces, newest).begun, candidates), cost, nodes=nodes)
    allowed = [tree for tree in trees if len(tree) <= nodes] or [newest]
    return max(allowed, key=lambda tree: replayed_speedup(traces, tree, cost))


def replayed_speedup(traces: Sequence[Trace], tree: Sequence[RankPath], cost: TreeCost) -> float:
    """Over plain decoding, in these generations and by these costs."""
    return replay(traces, tree).accept_length * cost.plain_ms / cost.pass_ms(tree)
