"""What a pass emits and takes, by how large the trees in it may be."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from spec_trt.runtime.allowance import Size
from spec_trt.runtime.costs import DraftCost
from spec_trt.runtime.outlook import Outlook

__all__ = ["Drafting", "PassPlan", "Planner"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """A sequence whose trees are sized.

    Attributes:
        outlook: What its drafts will be worth.
        cost: What drafting takes.
        backlog: Rows that its head has yet to read before it drafts.
    """

    outlook: Outlook
    cost: DraftCost
    backlog: int = 0

    @property
    def backlog_ms(self) -> float:
        """What reading its backlog takes, once: a row is one that something could be drafted behind."""
        return self.backlog * (self.cost.node_ms or 0.0)

    def ms(self, size: Size, *, usual: bool = False) -> float:
        """Milliseconds that drafting a tree of some size takes.

        Args:
            size: The tree's.
            usual: Whether nothing has a price, so that all levels are drafted.
        """
        if not size.nodes:
            return 0.0
        if self.cost.fixed_ms is None:
            return self.cost.pass_ms
        levels, inner = (size.levels, size.levels) if usual else self.outlook.drafting(size)
        return self.cost.fixed_ms + levels * (self.cost.level_ms or 0.0) + inner * (self.cost.node_ms or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPlan:
    """What a pass is expected to be.

    Attributes:
        sizes: Of each tree, how many nodes below the root it may have.
        tokens: That all sequences emit.
        ms: That it takes.
        absent: By number of nodes, from none to the largest tree's, how likely it is that no tree has more.
    """

    sizes: Sequence[int]
    tokens: float
    ms: float
    absent: Sequence[float]

    @property
    def rate(self) -> float:
        """Tokens per millisecond."""
        return self.tokens / self.ms


class Planner:
    """Plans a pass.

    Args:
        drafting: The sequences whose trees are sized, at least one.
        batch: How many sequences there are.
        curve: Milliseconds of a verify pass by the nodes below the root of its largest tree, from none on.
        overhead_ms: The loop's own time.
        least_rate: Tokens that a millisecond is worth at the least, as later passes make so many of it.
    """

    def __init__(
        self,
        drafting: Sequence[Drafting],
        *,
        batch: int,
        curve: Sequence[float],
        overhead_ms: float = 0.0,
        least_rate: float = 0.0,
    ) -> None:
        self._drafting, self._batch, self._least_rate = drafting, batch, least_rate
        self._plain_ms = curve[0] + overhead_ms
        self._steps = [after - before for before, after in pairwise(curve)]

    def best_alike(self) -> PassPlan:
        """Of the plans in which all may have as many nodes, the one with the most tokens per millisecond.

        Where a millisecond is worth more than that, it is the one with the most tokens beyond those that its
        milliseconds are worth.
        """
        verify_ms = self._verify_ms(self._absent([one.outlook.sizes[-1].nodes for one in self._drafting]))
        plans = {nodes: (self._tokens(sizes), self._ms(sizes, verify_ms[nodes])) for nodes, sizes in self._alike()}
        rate = max(self._least_rate, *(tokens / ms for tokens, ms in plans.values()))
        best = max(plans, key=lambda nodes: plans[nodes][0] - rate * plans[nodes][1])
        return self.plan([one.outlook.size(best).nodes for one in self._drafting])

    def _alike(self) -> Iterator[tuple[int, list[Size]]]:
        """Every number of nodes that is a size of someone's, and all sequences' sizes then."""
        for nodes in sorted({size.nodes for one in self._drafting for size in one.outlook.sizes}):
            yield nodes, [one.outlook.size(nodes) for one in self._drafting]

    def plan(self, nodes: Sequence[int], *, usual: bool = False) -> PassPlan:
        """The plan in which each sequence may have so many nodes.

        Args:
            nodes: Of each.
            usual: Whether nothing has a price.
        """
        absent = self._absent(nodes, usual=usual)
        sizes = [one.outlook.size(count) for one, count in zip(self._drafting, nodes, strict=True)]
        return PassPlan(
            sizes=[size.nodes for size in sizes],
            tokens=self._tokens(sizes),
            ms=self._ms(sizes, self._verify_ms(absent)[-1], usual=usual),
            absent=absent,
        )

    def rate_beside(self, plan: PassPlan) -> float:
        """Tokens that a millisecond is worth beside a plan."""
        return max(plan.rate, self._least_rate)

    def trial_loss(self, nodes: Sequence[int], plan: PassPlan) -> float:
        """Tokens that a pass is expected to lose to another plan, where nothing has a price in it.

        Those that its longer time is worth are among them, and all are given as a share of the plan's.

        What heads have yet to read for it is lost too: who drafts on does not pay it again.

        Args:
            nodes: Of each sequence, how many it may have.
            plan: The other plan.
        """
        trial = self.plan(nodes, usual=True)
        backlog_ms = sum(one.backlog_ms for one, count in zip(self._drafting, nodes, strict=True) if count)
        longer_ms = trial.ms + backlog_ms - plan.ms
        return max((self.rate_beside(plan) * longer_ms - (trial.tokens - plan.tokens)) / plan.tokens, 0.0)

    def own_steps(self, outlook: Outlook, plan: PassPlan) -> list[float]:
        """Milliseconds that each node of one sequence's tree costs a pass, as no other tree has so many."""
        size = outlook.size(len(plan.absent)).nodes
        return [
            step * none / (1 - outlook.present(count) * (count < size))
            for count, (step, none) in enumerate(zip(self._steps, plan.absent, strict=False))
        ]

    def _absent(self, nodes: Sequence[int], *, usual: bool = False) -> list[float]:
        trees = [(one.outlook, count) for one, count in zip(self._drafting, nodes, strict=True)]
        return [
            math.prod(1 - outlook.present(count, usual=usual) for outlook, most in trees if count < most)
            for count in range(max(nodes))
        ]

    def _verify_ms(self, absent: Sequence[float]) -> list[float]:
        """Milliseconds of a pass without its drafting, by the nodes that its largest tree may have."""
        longer = (step * (1 - none) for step, none in zip(self._steps, absent, strict=False))
        return list(accumulate(longer, initial=self._plain_ms))

    def _tokens(self, sizes: Sequence[Size]) -> float:
        return self._batch + sum(one.outlook.gain(size.nodes) for one, size in zip(self._drafting, sizes, strict=True))

    def _ms(self, sizes: Sequence[Size], verify_ms: float, *, usual: bool = False) -> float:
        """Of a pass, its drafting too."""
        return verify_ms + sum(one.ms(size, usual=usual) for one, size in zip(self._drafting, sizes, strict=True))
