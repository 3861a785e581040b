"""Where speculation pays: what a pass costs in plain steps, against the tokens that it gives. Arithmetic alone."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from spec_trt.bench_report import BASELINE
from spec_trt.profile.acceptance import accepted_counts, offered_counts
from spec_trt.profile.recording import DraftedPass, RankPath
from spec_trt.runtime.costs import Costs, DraftCost

__all__ = ["PREDICTION_MARGIN", "BreakEven", "Budget", "Standing", "break_even_table", "standing"]

PREDICTION_MARGIN = 0.1
"""By what share a predicted speed-up may be off on a machine that does nothing else."""

_LEARN_FROM_REJECTED = frozenset({"jacobi", "lookahead"})
"""Methods whose drafts come of nodes that were not accepted: without these nodes they would draft something else."""

_BUDGETS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """The accept length that a tree must reach to pay.

    Attributes:
        batch: Sequences.
        past: Committed rows of each.
        nodes: Of each one's tree.
        verify_ms: Of the verify pass.
        accept_length: What it costs in plain steps, no draft counted.
        with_draft: By method, the same with the method's drafting, as it is by default.
    """

    batch: int
    past: int
    nodes: int
    verify_ms: float
    accept_length: float
    with_draft: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A method whose trees have only so many nodes below the root, those that were accepted most.

    Attributes:
        nodes: Below the root, of every tree at the most.
        accept_length: Predicted.
        speedup: Predicted, over plain decoding.
    """

    nodes: int
    accept_length: float
    speedup: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a method stands against the break-even.

    Attributes:
        method: Its name.
        nodes: Of a pass, the mean.
        draft_ms: Of a pass, the mean; what the verify pass takes longer behind a head's graph is part of it.
        verify_ms: Of a pass's verification, the mean that its sizes would take by the measured costs.
        accept_length: What it reached.
        break_even: What it had to reach: its mean pass in plain steps.
        predicted_speedup: The former over the latter.
        measured_speedup: Of its generations, in tokens per second over plain decoding's; None where that did not run.
        by_batch: By number of sequences decoded together, the predicted speed-up.
        budgets: By budget, what is predicted; empty for a method that drafts from what was rejected.
        best: The best of the budgets, or as it is.
    """

    method: str
    nodes: float
    draft_ms: float
    verify_ms: float
    accept_length: float
    break_even: float
    predicted_speedup: float
    measured_speedup: float | None
    by_batch: Mapping[int, float]
    budgets: Sequence[Budget] = field(default_factory=list)
    best: Budget

    @property
    def error(self) -> float | None:
        """By what share the prediction is too high; negative where it is too low."""
        return None if not self.measured_speedup else self.predicted_speedup / self.measured_speedup - 1


def break_even_table(costs: Costs, past: int, nodes: Sequence[int], batches: Sequence[int]) -> list[BreakEven]:
    """What trees of some sizes must reach.

    Every sequence of a batch is drafted for by itself, and has its own share of the loop's time.
    """
    table = []
    for batch in batches:
        plain = _plain_step_ms(costs, past=past, batch=batch)
        for count in nodes:
            with_draft = {
                name: _step_ms(costs, count, past=past, batch=batch, draft_ms=draft.pass_ms) / plain
                for name, draft in costs.draft.items()
                if name != BASELINE
            }
            table.append(
                BreakEven(
                    batch=batch,
                    past=past,
                    nodes=count,
                    verify_ms=costs.verify_ms(count, past=past, batch=batch),
                    accept_length=_step_ms(costs, count, past=past, batch=batch, draft_ms=0.0) / plain,
                    with_draft=with_draft,
                )
            )
    return table


def standing(
    method: str,
    passes: Sequence[DraftedPass],
    costs: Costs,
    *,
    measured_speedup: float | None = None,
    batches: Sequence[int] = (1,),
) -> Standing:
    """Where a method stands.

    Args:
        method: Its name.
        passes: What it drafted and accepted with its default options, at least one pass.
        costs: What that costs here.
        measured_speedup: See `Standing`.
        batches: For which to predict.
    """
    draft = costs.draft[method]
    sizes = Counter(one.nodes for one in passes)
    past = sum(one.past for one in passes) / len(passes)
    length = 1 + sum(len(one.accepted) for one in passes) / len(passes)
    relative = {batch: _relative(costs, sizes, draft.pass_ms, past, batch) for batch in (1, *batches)}
    as_it_is = Budget(nodes=max(sizes) - 1, accept_length=length, speedup=length / relative[1])
    budgets = [] if method in _LEARN_FROM_REJECTED else _budgets(passes, costs, draft, past)
    return Standing(
        method=method,
        nodes=sum(one.nodes for one in passes) / len(passes),
        draft_ms=draft.pass_ms,
        verify_ms=sum(count * costs.verify_ms(nodes, past=past) for nodes, count in sizes.items()) / len(passes),
        accept_length=length,
        break_even=relative[1],
        predicted_speedup=length / relative[1],
        measured_speedup=measured_speedup,
        by_batch={batch: length / relative[batch] for batch in batches},
        budgets=budgets,
        best=max([as_it_is, *budgets], key=lambda budget: budget.speedup),
    )


def _relative(costs: Costs, sizes: Mapping[int, int], draft_ms: float, past: float, batch: int) -> float:
    """A mean pass in plain steps; a batch's pass is as large as the largest of its trees."""
    steps = [
        share * _step_ms(costs, nodes, past=past, batch=batch, draft_ms=draft_ms)
        for nodes, share in _largest_of(sizes, batch).items()
    ]
    return sum(steps) / _plain_step_ms(costs, past=past, batch=batch)


def _plain_step_ms(costs: Costs, *, past: float, batch: int) -> float:
    """A step of plain decoding, in which nothing is drafted, though it is asked for."""
    draft = costs.draft.get(BASELINE)
    return _step_ms(costs, 1, past=past, batch=batch, draft_ms=draft.pass_ms if draft else 0.0)


def _step_ms(costs: Costs, nodes: int, *, past: float, batch: int, draft_ms: float) -> float:
    return costs.verify_ms(nodes, past=past, batch=batch) + batch * (draft_ms + costs.overhead_ms)


def _largest_of(sizes: Mapping[int, int], batch: int) -> dict[int, float]:
    """How likely each size is to be the largest of so many trees drawn from a distribution."""
    ordered, total = sorted(sizes), sum(sizes.values())
    at_most = [(count / total) ** batch for count in accumulate(sizes[size] for size in ordered)]
    return dict(zip(ordered, _steps(at_most), strict=True))


def _steps(cumulated: Sequence[float]) -> list[float]:
    return [value - before for before, value in zip([0.0, *cumulated], cumulated, strict=False)]


def _budgets(passes: Sequence[DraftedPass], costs: Costs, draft: DraftCost, past: float) -> list[Budget]:
    """What smaller trees would have given: of every pass, the nodes that were accepted most over all passes.

    A node's parent was accepted at least as often: with ties to the shorter path, what is kept is a tree.
    """
    offered, accepted = offered_counts(passes), accepted_counts(passes)
    order = sorted(offered, key=lambda path: (-accepted[path], len(path), path))
    sizes = [size for size in _BUDGETS if size < len(order)] + [len(order)]
    return [_budget(passes, frozenset(order[:size]), size, costs, draft, past) for size in sizes]


def _budget(
    passes: Sequence[DraftedPass],
    kept: frozenset[RankPath],
    size: int,
    costs: Costs,
    draft: DraftCost,
    past: float,
) -> Budget:
    if not size:  # nothing is drafted, nor asked for
        return Budget(nodes=0, accept_length=1.0, speedup=1.0)
    smaller = [_cut(one, kept) for one in passes]
    length = 1 + sum(len(one.accepted) for one in smaller) / len(smaller)
    draft_ms = sum(_draft_ms(draft, one, cut) for one, cut in zip(passes, smaller, strict=True)) / len(passes)
    relative = _relative(costs, Counter(one.nodes for one in smaller), draft_ms, past, 1)
    return Budget(nodes=size, accept_length=length, speedup=length / relative)


def _cut(one: DraftedPass, kept: frozenset[RankPath]) -> DraftedPass:
    depth = len(one.accepted)
    while one.accepted[:depth] and one.accepted[:depth] not in kept:
        depth -= 1
    return DraftedPass(
        past=one.past, drafts=[path for path in one.drafts if path in kept], accepted=one.accepted[:depth]
    )


def _draft_ms(draft: DraftCost, whole: DraftedPass, cut: DraftedPass) -> float:
    """A pass's drafting without the levels and nodes that are not drafted behind any more."""
    if draft.fixed_ms is None or draft.level_ms is None or draft.node_ms is None:
        return draft.pass_ms
    levels = max(whole.depth - 1, 0) - max(cut.depth - 1, 0)
    nodes = _inner(whole) - _inner(cut)
    return max(draft.pass_ms - draft.level_ms * levels - draft.node_ms * nodes, min(draft.fixed_ms, draft.pass_ms))


def _inner(one: DraftedPass) -> int:
    """Nodes below the root that have children."""
    return len({path[:-1] for path in one.drafts if len(path) > 1})
