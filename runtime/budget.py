"""How large a tree pays: decided every few passes, from what passes cost and what drafts have been worth."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Protocol

from spec_trt.runtime.allowance import UNLIMITED, Allowance, BudgetName, Size
from spec_trt.runtime.costs import Costs, DraftCost
from spec_trt.runtime.outlook import Outlook
from spec_trt.runtime.pass_plan import Drafting, Planner

__all__ = ["Budget", "Sized"]

_LONG_MEMORY = 400
"""Passes that what is known of a method comes from."""

_BACK = 0.25
"""How far what is known of a method goes back to what was measured, with every request: its text may be of any kind."""

_STANDS = 4
"""Passes that what pays is decided for: less changes in a few passes than deciding takes."""

_PAST_STEP = 64
"""Rows of the cache that are told apart."""

_TRIALS = 0.003
"""Share of the passes that may be lost to trials of larger trees than the best."""

_SAVED = 0.5
"""Passes that are saved up for trials while others are about to join: a trial is dear then, and cheap again later."""


class Sized(Protocol):
    """What the budget wants to know of a sequence."""

    method: str
    budget: int | BudgetName
    outlook: Outlook | None

    @property
    def backlog(self) -> int:
        """Rows of its text that its head has yet to read before it drafts."""

    def sizes(self) -> Sequence[Size]:
        """The sizes of tree that its drafter can make use of."""


class Budget:
    """Sizes the trees of passes so that they emit the most tokens per millisecond.

    A pass emits a token and what is accepted of the drafts, as much as each sequence's own passes let expect, and
    takes c(n) milliseconds, n being its largest tree: all are padded to that. So one size is looked for that is best
    for all, and each sequence then drafts as much of it as its own drafting, and what the pass takes longer for it
    alone, pay for. Where no tree pays it decodes plainly, and tries again later.

    While others are about to join, a millisecond is worth what the larger batch will make of it: a token of a few
    sequences that is bought dearly saves little in passes that serve many.

    Args:
        costs: Reads what passes cost here: asked where a sequence's budget is `auto`, which is let through only then.
    """

    def __init__(self, costs: Callable[[], Costs | None] = lambda: None) -> None:
        self._read_costs = costs
        self._known: dict[tuple[str, tuple[Size, ...]], Outlook] = {}
        self._credit = 0.0
        self._setting: tuple[object, ...] = ()
        self._decided, self._stood = _Decision(allowances=[]), 0
        self._curve_ms = lru_cache(maxsize=1024)(self._measured_curve)

    def allow(
        self, sequences: Sequence[Sized], lengths: Sequence[int], *, coming: Sequence[int] = ()
    ) -> list[Allowance]:
        """What each sequence's tree of the next pass may have.

        Args:
            sequences: Those of the pass.
            lengths: Of each, its committed rows.
            coming: Of each one that will soon decode with them, the rows that it will have then.
        """
        outlooks = [sequence.outlook or self._outlook(sequence) for sequence in sequences]
        if not any(outlooks):
            return [_fixed(sequence) for sequence in sequences]
        past, least_rate = _stepped_mean(lengths), self._rate_with(lengths, coming)
        setting = (past, least_rate, *outlooks)
        if not least_rate or self._credit < _SAVED:
            self._credit += _TRIALS
        if self._setting != setting or not self._stands():
            pairs = zip(sequences, outlooks, strict=True)
            drafting = [self._drafting(sequence, outlook) for sequence, outlook in pairs if outlook]
            self._decided = self._decide(drafting, batch=len(sequences), past=past, least_rate=least_rate)
            self._setting, self._stood = setting, 0
        self._stood += 1
        allowances = iter(self._decided.allowances)
        return [
            next(allowances) if outlook else _fixed(sequence)
            for sequence, outlook in zip(sequences, outlooks, strict=True)
        ]

    def _stands(self) -> bool:
        """Whether what was decided for the same sequences is not to be decided anew.

        Where nothing was drafted no sequence has shown anything since, and a trial is hardly ever cheaper than it was.
        """
        if self._decided.is_plain:
            return self._credit < self._decided.trial_loss
        return self._stood < self._decided.passes

    def _outlook(self, sequence: Sized) -> Outlook | None:
        """A sequence's first, begun with what is known of its method; None where it has a size of its own."""
        if sequence.budget == "auto":
            sizes = tuple(sequence.sizes())
            sequence.outlook = Outlook(sizes, beyond=self._known_of(sequence.method, sizes))
        return sequence.outlook

    def _known_of(self, method: str, sizes: tuple[Size, ...]) -> Outlook:
        """What is known of a method as a request begins: at first, what it was worth where costs were measured."""
        worth = self._costs.worth.get(method)
        measured, known = worth and worth.resized(sizes[-1].nodes), self._known.get((method, sizes))
        if known is None:
            known = self._known[method, sizes] = Outlook(sizes, measured, memory=_LONG_MEMORY)
        elif measured is not None:
            known.go_back(measured, _BACK)
        return known

    def _drafting(self, sequence: Sized, outlook: Outlook) -> Drafting:
        cost = self._costs.draft.get(sequence.method, _FREE)
        return Drafting(outlook=outlook, cost=cost, backlog=sequence.backlog)

    def _decide(self, drafting: Sequence[Drafting], *, batch: int, past: int, least_rate: float) -> "_Decision":
        """What pays for itself; or more than that, as often as trying it loses little.

        All try it together: what none of them could pay for alone may pay for all. Nothing has a price then, so that
        drafters that had trusted themselves too much learn of it when they are right again.
        """
        curve = self._curve_ms(max(one.outlook.sizes[-1].nodes for one in drafting), past, batch)
        planner = Planner(
            drafting, batch=batch, curve=curve, overhead_ms=self._costs.overhead_ms, least_rate=least_rate
        )
        best = planner.best_alike()
        rate = planner.rate_beside(best)
        paying = [_paying(one, planner.own_steps(one.outlook, best), rate) for one in drafting]
        sizes = [allowance.nodes for allowance in paying]
        plan = best if sizes == best.sizes else planner.plan(sizes)

        larger = [size.nodes for one in drafting for size in one.outlook.sizes if size.nodes > max(best.sizes)]
        nodes = min(larger, default=max(best.sizes))
        tried = [one.outlook.size(nodes).nodes for one in drafting]
        loss = math.inf if tried == sizes else planner.trial_loss(tried, plan)
        if loss > self._credit:
            return _Decision(allowances=paying, passes=_STANDS, trial_loss=loss)
        self._credit -= loss
        return _Decision(allowances=[Allowance(nodes=size) for size in tried])

    def _rate_with(self, lengths: Sequence[int], coming: Sequence[int]) -> float:
        """Tokens per millisecond that sequences will emit together with those to come, at the least."""
        batch = min(len(lengths) + len(coming), self._costs.largest_batch)
        if batch <= len(lengths):
            return 0.0
        [plain_ms] = self._curve_ms(0, _stepped_mean([*lengths, *coming]), batch)
        return batch / (plain_ms + batch * self._costs.overhead_ms)

    @cached_property
    def _costs(self) -> Costs:
        costs = self._read_costs()
        assert costs is not None
        return costs

    def _measured_curve(self, nodes: int, past: int, batch: int) -> list[float]:
        """Milliseconds of a pass whose largest tree has none to so many nodes below the root."""
        return [self._costs.verify_ms(1 + count, past=past, batch=batch) for count in range(nodes + 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decision:
    """What the trees of a pass may have.

    Attributes:
        allowances: Of each sequence that is sized.
        passes: That it stands for, where anything is drafted.
        trial_loss: What the next trial would lose, as a share of what a pass emits.
    """

    allowances: Sequence[Allowance]
    passes: int = 1
    trial_loss: float = 0.0

    @property
    def is_plain(self) -> bool:
        """Whether nothing is drafted."""
        return not any(allowance.nodes for allowance in self.allowances)


def _paying(one: Drafting, steps: Sequence[float], rate: float) -> Allowance:
    """As much of a sequence's tree as pays for itself.

    Args:
        one: The sequence.
        steps: Milliseconds that each node of its tree costs the pass.
        rate: Tokens that a millisecond is worth.
    """
    outlook = one.outlook
    longer_ms = list(accumulate((outlook.present(count) * step for count, step in enumerate(steps)), initial=0.0))
    sizes = [size for size in outlook.sizes if size.nodes <= len(steps)]
    nodes = max(sizes, key=lambda size: outlook.gain(size.nodes) - rate * (longer_ms[size.nodes] + one.ms(size))).nodes
    price = rate / outlook.calibration
    return Allowance(
        nodes=nodes,
        prices=list(accumulate((price * step for step in steps[:nodes]), initial=0.0)),
        level_price=price * (one.cost.level_ms or 0.0),
    )


def _stepped_mean(lengths: Sequence[int]) -> int:
    return _PAST_STEP * round(sum(lengths) / len(lengths) / _PAST_STEP)


def _fixed(sequence: Sized) -> Allowance:
    """Of a sequence whose trees have a size of their own."""
    return Allowance(nodes=sequence.budget - 1) if isinstance(sequence.budget, int) else UNLIMITED


_FREE = DraftCost(pass_ms=0.0)
