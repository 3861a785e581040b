"""How large a tree pays: decided before every pass, from what passes cost and what drafts have been worth."""

from collections.abc import Sequence
from functools import lru_cache
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
    for all, and each sequence then drafts as much of it as its own drafting pays for. Where no tree pays it decodes
    plainly, and tries again later.

    Args:
        costs: What passes cost here; None where no sequence asks for it.
    """

    def __init__(self, costs: Costs | None = None) -> None:
        self._costs = costs
        self._known: dict[tuple[str, tuple[Size, ...]], Outlook] = {}
        self._verify_ms = lru_cache(maxsize=4096)(self._measured_ms)

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
        nodes, rate = self._best(sized, past, len(sequences))
        price = rate * self._next_node_ms(sized, nodes, past, len(sequences)) / len(sequences)
        return [
            self._allowance(sequence, outlook, nodes, rate, price) if outlook else _fixed(sequence)
            for sequence, outlook in zip(sequences, outlooks, strict=True)
        ]

    def _outlook(self, sequence: Sized) -> Outlook | None:
        """A sequence's, begun with what is known of its method; None where it has a size of its own."""
        if sequence.budget == "auto" and sequence.outlook is None:
            sizes = tuple(sequence.sizes())
            known = self._known.setdefault((sequence.method, sizes), Outlook(sizes, memory=_LONG_MEMORY))
            sequence.outlook = Outlook(sizes, known)
        return sequence.outlook

    def _best(self, sized: Sequence[tuple[str, Outlook]], past: int, batch: int) -> tuple[int, float]:
        """The number of nodes with the most tokens per millisecond, and how many these are."""
        choices = sorted({size.nodes for _, outlook in sized for size in outlook.sizes})
        rates = [(self._rate(sized, nodes, past, batch), -nodes) for nodes in choices]
        rate, fewest = max(rates)
        return -fewest, rate

    def _rate(self, sized: Sequence[tuple[str, Outlook]], nodes: int, past: int, batch: int) -> float:
        drafting = [(method, outlook, outlook.size(nodes)) for method, outlook in sized]
        cost = self._verify_ms(self._largest(sized, nodes), past, batch) + self._overhead_ms
        cost += sum(self._draft_ms(method, outlook, size) for method, outlook, size in drafting)
        return (batch + sum(outlook.gain(size.nodes) for _, outlook, size in drafting)) / cost

    def _allowance(self, sequence: Sized, outlook: Outlook, nodes: int, rate: float, price: float) -> Allowance:
        """As much of the pass's tree as pays for its own drafting, or a little more where it is time to try that."""
        sizes = [size for size in outlook.sizes if size.nodes <= nodes]
        best = max(
            sizes, key=lambda size: outlook.gain(size.nodes) - rate * self._draft_ms(sequence.method, outlook, size)
        )
        level_ms = self._draft_cost(sequence.method).level_ms or 0.0
        return Allowance(nodes=outlook.with_trials(best).nodes, node_price=price, level_price=rate * level_ms)

    def _next_node_ms(self, sized: Sequence[tuple[str, Outlook]], nodes: int, past: int, batch: int) -> float:
        largest = self._largest(sized, nodes)
        return self._verify_ms(largest + 1, past, batch) - self._verify_ms(largest, past, batch)

    def _largest(self, sized: Sequence[tuple[str, Outlook]], nodes: int) -> float:
        """Nodes of the largest tree, roots included, to the half: so few numbers are looked up."""
        return 1 + round(2 * max(outlook.mean_nodes(nodes) for _, outlook in sized)) / 2

    def _draft_ms(self, method: str, outlook: Outlook, size: Size) -> float:
        cost = self._draft_cost(method)
        expected = cost.pass_ms
        if cost.fixed_ms is not None:
            expected = cost.fixed_ms + size.levels * (cost.level_ms or 0.0)
        return outlook.draft_ms(size, expected) if size.nodes else 0.0

    def _draft_cost(self, method: str) -> DraftCost:
        return (self._costs.draft if self._costs else {}).get(method, _FREE)

    @property
    def _overhead_ms(self) -> float:
        return self._costs.overhead_ms if self._costs else 0.0

    def _measured_ms(self, nodes: float, past: int, batch: int) -> float:
        assert self._costs is not None  # who asks for it was let through with costs alone
        return self._costs.verify_ms(nodes, past=past, batch=batch)


def _fixed(sequence: Sized) -> Allowance:
    """Of a sequence whose trees have a size of their own."""
    return Allowance(nodes=sequence.budget - 1) if isinstance(sequence.budget, int) else UNLIMITED


_FREE = DraftCost(pass_ms=0.0)
