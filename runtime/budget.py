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
        self._curve_ms = lru_cache(maxsize=1024)(self._measured_curve)

    def allow(self, sequences: Sequence[Sized], lengths: Sequence[int]) -> list[Allowance]:
        """What each sequence's tree of the next pass may have.

        Args:
            sequences: Those of the pass.
            lengths: Of each, its committed rows.
        """
        outlooks = [self._outlook(sequence) for sequence in sequences]
        sized = [(sequence.method, outlook) for sequence, outlook in zip(sequences, outlooks, strict=True) if outlook]
        if not sized:
            return [_fixed(sequence) for sequence in sequences]
        past = _PAST_STEP * round(sum(lengths) / len(lengths) / _PAST_STEP)
        largest = max(outlook.sizes[-1].nodes for _, outlook in sized)
        market = self._market(sized, self._curve_ms(largest, past, len(sequences)), len(sequences))
        return [
            self._allowance(sequence.method, outlook, market) if outlook else _fixed(sequence)
            for sequence, outlook in zip(sequences, outlooks, strict=True)
        ]

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

    def _market(self, sized: Sequence[tuple[str, Outlook]], curve: Sequence[float], batch: int) -> "_Market":
        """The size with the most tokens per millisecond, and how many these are."""
        steps = [after - before for before, after in pairwise(curve)]
        absent = [math.prod(1 - outlook.present(place) for _, outlook in sized) for place in range(len(steps))]
        verify_ms = list(
            accumulate((step * (1 - none) for step, none in zip(steps, absent, strict=True)), initial=curve[0])
        )

        def rate(nodes: int) -> float:
            drafting = [(method, outlook, outlook.size(nodes)) for method, outlook in sized]
            draft_ms = sum(self._draft_ms(method, outlook, size) for method, outlook, size in drafting)
            tokens = batch + sum(outlook.gain(size.nodes) for _, outlook, size in drafting)
            return tokens / (verify_ms[nodes] + self._costs.overhead_ms + draft_ms)

        choices = sorted({size.nodes for _, outlook in sized for size in outlook.sizes})
        best = max(choices, key=rate)
        return _Market(rate=rate(best), nodes=best, steps=steps, absent=absent)

    def _allowance(self, method: str, outlook: Outlook, market: "_Market") -> Allowance:
        """As much of the pass's tree as pays for itself, or more where it is time to try that."""
        steps = market.own_steps(outlook)
        longer_ms = list(accumulate((outlook.present(place) * step for place, step in enumerate(steps)), initial=0.0))

        def surplus(size: Size) -> float:
            return outlook.gain(size.nodes) - market.rate * (
                longer_ms[size.nodes] + self._draft_ms(method, outlook, size)
            )

        best = max((size for size in outlook.sizes if size.nodes <= market.nodes), key=surplus)
        nodes, price = outlook.with_trials(best, surplus).nodes, market.rate / outlook.calibration
        return Allowance(
            nodes=nodes,
            prices=list(accumulate((price * step for step in steps[:nodes]), initial=0.0)),
            level_price=price * (self._draft_cost(method).level_ms or 0.0),
        )

    def _draft_ms(self, method: str, outlook: Outlook, size: Size) -> float:
        cost = self._draft_cost(method)
        if not size.nodes:
            return 0.0
        if cost.fixed_ms is None:
            return cost.pass_ms
        levels, inner = outlook.drafting(size)
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
class _Market:
    """What time is worth in a pass.

    Attributes:
        rate: Tokens of all sequences per millisecond.
        nodes: Below the root, of the best tree.
        steps: By place, the milliseconds that the pass takes longer where a tree has a node there.
        absent: By place, how likely it is that none has.
    """

    rate: float
    nodes: int
    steps: Sequence[float]
    absent: Sequence[float]

    def own_steps(self, outlook: Outlook) -> list[float]:
        """By place of a sequence's tree, what the pass takes longer for it alone, as no other is that large."""
        others = (
            none / (1 - outlook.present(place)) if place < self.nodes else 1.0 for place, none in enumerate(self.absent)
        )
        return [step * none for step, none in zip(self.steps, others, strict=True)]


def _fixed(sequence: Sized) -> Allowance:
    """Of a sequence whose trees have a size of their own."""
    return Allowance(nodes=sequence.budget - 1) if isinstance(sequence.budget, int) else UNLIMITED


_FREE = DraftCost(pass_ms=0.0)
