"""What one sequence's drafts have been worth so far, and will be."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from spec_trt.runtime.allowance import Allowance, Size
from spec_trt.runtime.tree import Tree

__all__ = ["Outlook"]

_PRIOR_PASSES = 3
"""What is known beforehand counts as so many passes."""

_MEMORY = 12
"""Passes after which a pass counts little: texts change from one paragraph to the next."""

_RETURN = 0.03
"""How far what has not been tried comes back per pass to what is known beforehand."""

_FEWEST_WAITS, _MOST_WAITS = 8, 64
"""Passes until a larger tree than the best is tried: twice as many after every trial that did not pay."""


class Outlook:
    """How many nodes of each place in the drafter's own order there are, and how many of them are accepted.

    Attributes:
        sizes: Those worth choosing among, smallest first.

    Args:
        sizes: See above.
        prior: What earlier sequences have shown; None for a guess that is worth trying.
        memory: Passes after which a pass counts little.
    """

    def __init__(self, sizes: Sequence[Size], prior: "Outlook | None" = None, *, memory: int = _MEMORY) -> None:
        self.sizes, self._memory, self._prior = sizes, memory, prior
        self._sizes, places = [size.nodes for size in sizes], sizes[-1].nodes
        self._accepted: list[float] = [0.6 * 0.8**place for place in range(places)]
        self._present: list[float] = [1.0] * places
        self._draft_ms: dict[int, float] = {}
        self._passes: list[int] = [_PRIOR_PASSES] * places
        if prior is not None:
            self._accepted, self._present = list(prior._accepted), list(prior._present)
            self._draft_ms = dict(prior._draft_ms)
        self._best, self._waited, self._wait = -1, 0, _FEWEST_WAITS
        self._sum()

    def size(self, nodes: int) -> Size:
        """The largest size with no more nodes."""
        return self.sizes[bisect_right(self._sizes, nodes) - 1]

    def gain(self, nodes: int) -> float:
        """Drafted tokens that a pass accepts where its tree may have so many nodes."""
        return self._gains[min(nodes, len(self._gains) - 1)]

    def mean_nodes(self, nodes: int) -> float:
        """Nodes below the root that a tree then has."""
        return self._nodes[min(nodes, len(self._nodes) - 1)]

    def draft_ms(self, size: Size, expected: float) -> float:
        """Milliseconds that drafting a tree of some size takes; as expected where none has been drafted."""
        return self._draft_ms.get(size.nodes, expected)

    def learn(self, tree: Tree, path: Sequence[int], allowance: Allowance, draft_ms: float) -> None:
        """Take what a pass has shown.

        Args:
            tree: What was verified.
            path: Its accepted nodes, the root first.
            allowance: What it was allowed to have.
            draft_ms: What drafting it took.
        """
        allowed = min(allowance.nodes, len(self._accepted))
        self._blend(
            {tree.place(node) for node in range(1, len(tree))}, {tree.place(node) for node in path[1:]}, allowed
        )
        if self._prior is not None:
            self._prior.learn(tree, path, allowance, draft_ms)
            self._come_back(self._accepted, self._prior._accepted, allowed)
            self._come_back(self._present, self._prior._present, allowed)
        if allowed:
            known = self._draft_ms.get(allowance.nodes, draft_ms)
            self._draft_ms[allowance.nodes] = known + 0.2 * (min(draft_ms, 3 * known) - known)
        self._sum()

    def with_trials(self, best: Size) -> Size:
        """The size of the next tree: the best by all that is known, and the next larger one from time to time.

        Args:
            best: The size that pays best.
        """
        if best.nodes != self._best:
            self._best, self._waited, self._wait = best.nodes, 0, _FEWEST_WAITS
        self._waited += 1
        larger = bisect_right(self._sizes, best.nodes)
        if self._waited <= self._wait or larger == len(self.sizes):
            return best
        self._waited, self._wait = 0, min(2 * self._wait, _MOST_WAITS)
        return self.sizes[larger]

    def _blend(self, present: set[int], accepted: set[int], allowed: int) -> None:
        for place in range(allowed):
            self._passes[place] += 1
            rate = 1 / min(self._passes[place], self._memory)
            self._present[place] += rate * ((place in present) - self._present[place])
            self._accepted[place] += rate * ((place in accepted) - self._accepted[place])

    def _come_back(self, means: list[float], prior: Sequence[float], allowed: int) -> None:
        for place in range(allowed, len(means)):
            means[place] += _RETURN * (prior[place] - means[place])

    def _sum(self) -> None:
        self._gains = list(accumulate(self._accepted, initial=0.0))
        self._nodes = list(accumulate(self._present, initial=0.0))
