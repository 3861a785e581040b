"""The static tree that accepts most, given how often each rank is right at each depth."""

import heapq
from collections.abc import Sequence

from spec_trt.errors import ConfigError

__all__ = ["best_static_tree"]


def best_static_tree(rank_accuracy: Sequence[Sequence[float]], nodes: int) -> list[list[int]]:
    """The tree with the largest expected accept length.

    A node counts with the product of the accuracies along its path, as if depths were independent (Cai et al.
    2024, arXiv 2401.10774, section 2.3.3). No child outweighs its parent, so taking the heaviest next node again
    and again gives the best tree of every size.

    Args:
        rank_accuracy: Per depth from 1, per rank from 0: how often that candidate is the target's token.
        nodes: Nodes below the root, at the most.

    Returns:
        Paths of ranks, sorted by length, then path; every prefix of a path is there too.

    Raises:
        ConfigError: There is nothing to choose from, or a number is no share.
    """
    if nodes < 1 or not rank_accuracy or not all(rank_accuracy):
        raise ConfigError("a static tree needs at least one node, one depth and one rank per depth")
    if not all(0.0 <= share <= 1.0 for shares in rank_accuracy for share in shares):
        raise ConfigError("accuracies must lie between 0 and 1: they are shares of the tokens drafted")
    chosen: list[list[int]] = []
    waiting = [(-share, [rank]) for rank, share in enumerate(rank_accuracy[0])]
    heapq.heapify(waiting)
    while waiting and len(chosen) < nodes:
        weight, path = heapq.heappop(waiting)
        chosen.append(path)
        below = rank_accuracy[len(path)] if len(path) < len(rank_accuracy) else ()
        for rank, share in enumerate(below):
            heapq.heappush(waiting, (weight * share, [*path, rank]))
    return sorted(chosen, key=lambda path: (len(path), path))
