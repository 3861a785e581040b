"""How likely each node of a tree is to be accepted, as far as some attempts tell."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from spec_trt.tune.attempt import Attempt, RankPath

__all__ = ["SMOOTHING", "reach_of"]

SMOOTHING = 16.0
"""So many tries more of every node, in which it did as all nodes of its depth and rank."""


def reach_of(
    attempts: Iterable[Attempt], tree: Sequence[RankPath], *, smoothing: float = SMOOTHING
) -> dict[RankPath, float]:
    """The share of attempts in which each node is accepted.

    A node is tried where its parent was accepted, and accepted with its parent's share times

        (accepted + smoothing * share of its depth and rank) / (tried + smoothing),

    so paths have shares of their own as far as they were seen often enough, where heads are usually taken to be as
    right behind one candidate as behind another (Cai et al. 2024, arXiv 2401.10774, section 2.3.3; Chen et al. 2024,
    arXiv 2402.12374, section 3.1).

    Args:
        attempts: With this tree.
        tree: Paths of ranks, parents first.
        smoothing: See above.

    Returns:
        By path; no child's is above its parent's.
    """
    tried, accepted = _counts(attempts)
    shared = _shares_by_depth_and_rank(tree, tried, accepted)
    reach: dict[RankPath, float] = {(): 1.0}
    for path in tree:
        weight = tried[path[:-1]] + smoothing
        hits = accepted[path] + smoothing * shared[len(path), path[-1]]
        reach[path] = reach[path[:-1]] * min(1.0, hits / weight) if weight else 0.0
    del reach[()]
    return reach


def _counts(attempts: Iterable[Attempt]) -> tuple[Counter[RankPath], Counter[RankPath]]:
    """Of each node, how often something behind it was tried, and how often it was accepted itself."""
    tried, accepted = Counter[RankPath](), Counter[RankPath]()
    for attempt in attempts:
        ranks = attempt.ranks
        tried.update(ranks[:depth] for depth in range(len(ranks) + attempt.failed))
        accepted.update(ranks[:depth] for depth in range(1, len(ranks) + 1))
    return tried, accepted


def _shares_by_depth_and_rank(
    tree: Iterable[RankPath], tried: Mapping[RankPath, int], accepted: Mapping[RankPath, int]
) -> dict[tuple[int, int], float]:
    """How often a candidate is right, whatever it is drafted behind; 0 where it was never tried."""
    all_tried, all_accepted = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for path in tree:
        place = len(path), path[-1]
        all_tried[place] += tried.get(path[:-1], 0)
        all_accepted[place] += accepted.get(path, 0)
    return {place: all_accepted[place] / max(1, count) for place, count in all_tried.items()}
