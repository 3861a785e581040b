"""How large a tree pays: decided before every pass, from what passes cost and what drafts have been worth."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import Protocol

from spec_trt.runtime.allowance import UNLIMITED, Allowance, BudgetName, Size
from spec_trt.runtime.costs import Costs, DraftCost
from spec_trt.runtime.outlook import Outlook

__all__ = ["Budget", "Sized"]

_LONG_MEMORY = 400
"""Passes that what is known of a method comes from."""

_PAST_STEP = 64
"""Rows of the cache that are told apart."""

_TRIALS = 0.01
"""Share of the tokens that may be lost to trials of larger trees than the best."""


Known = tuple[str, Outlook]
"""A sequence's method, and what is known of it."""


class Sized(Protocol):
    """What the budget wants to know of a sequence."""

    method: str
    budget: int | BudgetName
    outlook: Outlook | None

    def sizes(self) -> Sequence[Size]:
        """The sizes of tree that its drafter can make use of."""


class Budget:
    """Sizes the trees of a pass so that it emits the most tokens per millisecond.

    A pass emits a token and what is accepted of the drafts, as much as each sequence's own passes let expect, and
    takes c(n) milliseconds, n being its largest tree: all are padded to that. So one size is looked for that is best
    for all, and each sequence then drafts as much of it as its own drafting, and what the pass takes longer for it
    alone, pay for. Where no tree pays it decodes plainly, and tries again later.

    Args:
        costs: Reads what passes cost here: asked where a sequence's budget is `auto`, which is let through only then.
    """

    def __init__(self, costs: Callable[[], Costs | None] = lambda: None) -> None:
        self._read_costs = costs
        self._known: dict[tuple[str, tuple[Size, ...]], Outlook] = {}
        self._credit = 0.0
        self._curve_ms = lru_cache(maxsize=1024)(self._measured_curve)

    def allow(self, sequences: Sequence[Sized], lengths: Sequence[int]) -> list[Allowance]:
        """What each sequence's tree of the next pass may have.

        Args:
            sequences: Those of the pass.
            lengths: Of each, its committed rows.
        """
        pairs = [(sequence, self._outlook(sequence)) for sequence in sequences]
        sized = [(sequence.method, outlook) for sequence, outlook in pairs if outlook]
        if not sized:
            return [_fixed(sequence) for sequence in sequences]
        past = _PAST_STEP * round(sum(lengths) / len(lengths) / _PAST_STEP)
        largest = max(outlook.sizes[-1].nodes for _, outlook in sized)
        allowances = iter(self._allowances(sized, self._curve_ms(largest, past, len(sequences)), len(sequences)))
        return [next(allowances) if outlook else _fixed(sequence) for sequence, outlook in pairs]

    def _outlook(self, sequence: Sized) -> Outlook | None:
        """A sequence's, begun with what is known of its method; None where it has a size of its own."""
        if sequence.budget == "auto" and sequence.outlook is None:
            sizes = tuple(sequence.sizes())
            if (sequence.method, sizes) not in self._known:
                self._known[sequence.method, sizes] = self._measured(sequence.method, sizes)
            sequence.outlook = Outlook(sizes, beyond=self._known[sequence.method, sizes])
        return sequence.outlook

    def _measured(self, method: str, sizes: Sequence[Size]) -> Outlook:
        """What a method was worth where costs were measured."""
        worth = self._costs.worth.get(method)
        return Outlook(sizes, worth and worth.resized(sizes[-1].nodes), memory=_LONG_MEMORY)

    def _allowances(self, sized: Sequence[Known], curve: Sequence[float], batch: int) -> list[Allowance]:
        """What pays for itself; or more than that, as often as trying it loses little.

        All try it together: what none of them could pay for alone may pay for all. Nothing has a price then, so that
        drafters that had trusted themselves too much learn of it when they are right again.
        """
        best = self._best(sized, curve, batch)
        paying = [self._allowance(method, outlook, best) for method, outlook in sized]
        sizes = [allowance.nodes for allowance in paying]
        plan = best if sizes == best.sizes else self._plan(sized, sizes, curve, batch)
        self._credit += _TRIALS * plan.tokens

        larger = [size.nodes for _, outlook in sized for size in outlook.sizes if size.nodes > max(best.sizes)]
        nodes = min(larger, default=max(best.sizes))
        tried = [outlook.size(nodes).nodes for _, outlook in sized]
        if tried == sizes:
            return paying
        trial = self._plan(sized, tried, curve, batch, usual=True)
        loss = max(plan.rate * trial.ms - trial.tokens, 0.0)
        if loss > self._credit:
            return paying
        self._credit -= loss
        return [Allowance(nodes=size) for size in tried]

    def _best(self, sized: Sequence[Known], curve: Sequence[float], batch: int) -> "_Plan":
        """Of the plans in which all may have the same number of nodes, the one with the most tokens per millisecond."""
        steps = _steps(curve)
        absent = _absent([(outlook, outlook.sizes[-1].nodes) for _, outlook in sized])
        longer = (step * (1 - none) for step, none in zip(steps, absent, strict=True))
        plans = []
        for nodes, ms in enumerate(accumulate(longer, initial=curve[0] + self._costs.overhead_ms)):
            sizes = [outlook.size(nodes) for _, outlook in sized]
            if max(size.nodes for size in sizes) == nodes:
                plans.append(self._with_drafts(sized, sizes, ms, steps, absent[:nodes], batch))
        return max(plans, key=lambda plan: plan.rate)

    def _plan(
        self, sized: Sequence[Known], nodes: Sequence[int], curve: Sequence[float], batch: int, *, usual: bool = False
    ) -> "_Plan":
        """What a pass emits and takes in which each sequence may have so many nodes.

        Args:
            sized: The sequences whose trees are sized.
            nodes: Of each, how many it may have.
            curve: Milliseconds of a pass by the nodes of its largest tree, from none on.
            batch: Sequences.
            usual: Whether nothing has a price.
        """
        sizes = [outlook.size(count) for (_, outlook), count in zip(sized, nodes, strict=True)]
        steps = _steps(curve)
        absent = _absent([(outlook, size) for (_, outlook), size in zip(sized, nodes, strict=True)], usual=usual)
        ms = curve[0] + sum(step * (1 - none) for step, none in zip(steps, absent, strict=False))
        return self._with_drafts(sized, sizes, ms + self._costs.overhead_ms, steps, absent, batch, usual=usual)

    def _with_drafts(
        self,
        sized: Sequence[Known],
        sizes: Sequence[Size],
        ms: float,
        steps: Sequence[float],
        absent: Sequence[float],
        batch: int,
        *,
        usual: bool = False,
    ) -> "_Plan":
        gains = [outlook.gain(size.nodes) for (_, outlook), size in zip(sized, sizes, strict=True)]
        draft_ms = [self._draft_ms(*known, size, usual=usual) for known, size in zip(sized, sizes, strict=True)]
        return _Plan(
            sizes=[size.nodes for size in sizes],
            tokens=batch + sum(gains),
            ms=ms + sum(draft_ms),
            steps=steps,
            absent=absent,
        )

    def _allowance(self, method: str, outlook: Outlook, plan: "_Plan") -> Allowance:
        """As much of a sequence's tree as pays for itself."""
        steps = plan.own_steps(outlook)
        longer_ms = list(accumulate((outlook.present(place) * step for place, step in enumerate(steps)), initial=0.0))

        def surplus(size: Size) -> float:
            ms = longer_ms[size.nodes] + self._draft_ms(method, outlook, size)
            return outlook.gain(size.nodes) - plan.rate * ms

        nodes = max((size for size in outlook.sizes if size.nodes <= len(steps)), key=surplus).nodes
        price = plan.rate / outlook.calibration
        return Allowance(
            nodes=nodes,
            prices=list(accumulate((price * step for step in steps[:nodes]), initial=0.0)),
            level_price=price * (self._draft_cost(method).level_ms or 0.0),
        )

    def _draft_ms(self, method: str, outlook: Outlook, size: Size, *, usual: bool = False) -> float:
        cost = self._draft_cost(method)
        if not size.nodes:
            return 0.0
        if cost.fixed_ms is None:
            return cost.pass_ms
        levels, inner = (size.levels, size.levels) if usual else outlook.drafting(size)
        return cost.fixed_ms + levels * (cost.level_ms or 0.0) + inner * (cost.node_ms or 0.0)

    def _draft_cost(self, method: str) -> DraftCost:
        return self._costs.draft.get(method, _FREE)

    @cached_property
    def _costs(self) -> Costs:
        costs = self._read_costs()
        assert costs is not None
        return costs

    def _measured_curve(self, nodes: int, past: int, batch: int) -> list[float]:
        """Milliseconds of a pass whose largest tree has none to so many nodes below the root."""
        return [self._costs.verify_ms(1 + count, past=past, batch=batch) for count in range(nodes + 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What a pass is expected to be.

    Attributes:
        sizes: Of each tree, how many nodes below the root it may have.
        tokens: That all sequences emit.
        ms: That it takes.
        steps: Milliseconds that it would take longer for each further node of its largest tree.
        absent: By number of nodes, from none to the largest tree's, how likely it is that no tree has more.
    """

    sizes: Sequence[int]
    tokens: float
    ms: float
    steps: Sequence[float]
    absent: Sequence[float]

    @property
    def rate(self) -> float:
        """Tokens per millisecond."""
        return self.tokens / self.ms

    def own_steps(self, outlook: Outlook) -> list[float]:
        """Milliseconds that each node of one sequence's tree costs the pass, as no other tree has so many."""
        size = outlook.size(len(self.absent)).nodes
        return [
            step * none / (1 - outlook.present(place) * (place < size))
            for place, (step, none) in enumerate(zip(self.steps, self.absent, strict=False))
        ]


def _steps(curve: Sequence[float]) -> list[float]:
    return [after - before for before, after in pairwise(curve)]


def _absent(trees: Sequence[tuple[Outlook, int]], *, usual: bool = False) -> list[float]:
    """By number of nodes, from none on, how likely it is that no tree has more: of each, how many it may have."""
    return [
        math.prod(1 - outlook.present(place, usual=usual) for outlook, size in trees if place < size)
        for place in range(max(size for _, size in trees))
    ]


def _fixed(sequence: Sized) -> Allowance:
    """Of a sequence whose trees have a size of their own."""
    return Allowance(nodes=sequence.budget - 1) if isinstance(sequence.budget, int) else UNLIMITED


_FREE = DraftCost(pass_ms=0.0)
