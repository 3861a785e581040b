"""How much of what a method drafts is accepted: by depth, by rank among siblings, and by its own expectation."""

from collections import Counter
from collections.abc import Sequence

from spec_trt.profile.recording import DraftedPass, RankPath, Recording
from spec_trt.runtime.outlook import Worth

__all__ = ["accepted_counts", "by_depth", "by_rank", "offered_counts", "worth"]

_RANKS = 8  # further ones are of no interest


def by_depth(passes: Sequence[DraftedPass]) -> list[float]:
    """For each depth from 1, the share of passes that accepted a node there."""
    deepest = max((len(one.accepted) for one in passes), default=0)
    return [sum(len(one.accepted) >= depth for one in passes) / len(passes) for depth in range(1, deepest + 1)]


def by_rank(passes: Sequence[DraftedPass]) -> list[list[float]]:
    """For each depth from 1 and each rank, how often such a node was accepted where its parent was and it was drafted.

    Trailing ranks that were never accepted are left out, as are depths that were never reached.
    """
    offered, accepted = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for one in passes:
        for path in one.drafts:
            if path[-1] < _RANKS and path[:-1] == one.accepted[: len(path) - 1]:
                offered[len(path), path[-1]] += 1
                accepted[len(path), path[-1]] += path == one.accepted[: len(path)]
    deepest = max((depth for depth, _ in +accepted), default=0)
    table = []
    for depth in range(1, deepest + 1):
        last = max(rank for level, rank in +accepted if level == depth)
        table.append([accepted[depth, rank] / max(offered[depth, rank], 1) for rank in range(last + 1)])
    return table


def worth(recordings: Sequence[Recording]) -> Worth:
    """What a method's drafts were worth, place by place, in its recordings: at least one pass."""
    decisions = [decision for recording in recordings for decision in recording.decisions]
    present = Counter(count for tree, _ in decisions for count in range(len(tree) - 1))
    accepted = Counter(tree.place(node) for tree, path in decisions for node in path[1:])
    claimed = sum(sum(tree.chances.values()) for tree, _ in decisions)
    kept = sum(len(path) - 1 for tree, path in decisions if tree.chances)
    places = range(recordings[0].places)
    return Worth(
        accepted=[accepted[place] / len(decisions) for place in places],
        present=[present[place] / len(decisions) for place in places],
        calibration=(kept + 1) / (claimed + 1),
    )


def offered_counts(passes: Sequence[DraftedPass]) -> Counter[RankPath]:
    """How many passes drafted each node."""
    return Counter(path for one in passes for path in one.drafts)


def accepted_counts(passes: Sequence[DraftedPass]) -> Counter[RankPath]:
    """How many passes accepted each node."""
    return Counter(one.accepted[:depth] for one in passes for depth in range(1, len(one.accepted) + 1))
