"""What a pass is expected to emit and take, beside all that can happen in it."""

from itertools import product
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_trt.runtime.allowance import Size
from spec_trt.runtime.costs import DraftCost
from spec_trt.runtime.outlook import Outlook, Worth
from spec_trt.runtime.pass_plan import Drafting, Planner

SIZES = [Size(nodes=0), Size(nodes=1), Size(nodes=2, levels=1), Size(nodes=4, levels=2)]
CURVE = [10.0, 14.0, 15.0, 19.0, 19.5]
shares = st.lists(st.floats(0.0, 0.99), min_size=4, max_size=4).map(lambda drawn: sorted(drawn, reverse=True))


def drafting(present=(0.5, 0.4, 0.3, 0.2), accepted=(0.4, 0.2, 0.1, 0.05), **cost) -> Drafting:
    worth = Worth(accepted=list(accepted), present=list(present))
    return Drafting(outlook=Outlook(SIZES, worth), cost=DraftCost(**{"pass_ms": 0.0} | cost))


def expected_ms(presents, sizes) -> float:
    """Of every combination of numbers of nodes, how likely it is, times what the largest takes."""
    total = 0.0
    for counts in product(range(5), repeat=len(presents)):
        chances = []
        for count, present, size in zip(counts, presents, sizes, strict=True):
            more = [*([1.0, *present][: size + 1]), 0.0, 0.0, 0.0, 0.0, 0.0]
            chances.append(more[count] - more[count + 1])
        total += prod(chances) * CURVE[max(counts)]
    return total


@given(presents=st.lists(shares, min_size=1, max_size=3), data=st.data())
@settings(deadline=None, max_examples=60)
def test_a_pass_takes_what_its_largest_tree_takes_on_average(presents, data):
    sizes = [data.draw(st.sampled_from([0, 1, 2, 4])) for _ in presents]
    planner = Planner([drafting(present) for present in presents], batch=len(presents), curve=CURVE, overhead_ms=0.5)
    plan = planner.plan(sizes)
    assert plan.ms == pytest.approx(expected_ms(presents, sizes) + 0.5)
    assert plan.sizes == sizes


@given(presents=st.lists(shares, min_size=2, max_size=3))
@settings(deadline=None, max_examples=60)
def test_what_a_tree_costs_is_what_the_pass_would_save_without_it(presents):
    ones = [drafting(present) for present in presents]
    planner = Planner(ones, batch=len(presents), curve=CURVE)
    best = planner.best_alike()
    most = max(best.sizes)
    steps = planner.own_steps(ones[0].outlook, best)
    own = sum(step * ones[0].outlook.present(count) for count, step in enumerate(steps))
    assert own == pytest.approx(best.ms - planner.plan([0, *[most] * (len(presents) - 1)]).ms)


def test_drafting_costs_what_its_parts_do():
    whole = DraftCost(pass_ms=3.0, fixed_ms=1.0, level_ms=0.5, node_ms=0.1)
    one = Drafting(outlook=Outlook(SIZES, Worth(accepted=[0.1] * 4, present=[1.0] * 4)), cost=whole)
    assert [one.ms(size) for size in SIZES] == pytest.approx([0.0, 1.0, 1.6, 2.2])
    assert drafting(pass_ms=3.0).ms(SIZES[1]) == 3.0


def test_what_is_yet_to_be_read_is_lost_to_a_trial_and_to_no_plan():
    cost = DraftCost(pass_ms=2.0, fixed_ms=1.0, level_ms=0.0, node_ms=0.25)
    found = []
    for backlog in (0, 40):
        one = Drafting(outlook=drafting().outlook, cost=cost, backlog=backlog)
        planner = Planner([one, drafting()], batch=2, curve=CURVE)
        plan = planner.plan([0, 0])
        found.append((planner.best_alike(), planner.trial_loss([0, 1], plan), planner.trial_loss([1, 1], plan)))
    assert found[1][:2] == found[0][:2]  # the other one's trial does not have it read
    assert found[1][2] - found[0][2] == pytest.approx(40 * 0.25 / CURVE[0])


def test_the_best_plan_has_the_most_tokens_per_millisecond():
    free = Planner([drafting((1.0,) * 4, (0.9, 0.8, 0.7, 0.6))], batch=1, curve=[10.0] * 5)
    assert free.best_alike().sizes == [4]
    dear = Planner([drafting((1.0,) * 4, (0.9, 0.8, 0.7, 0.6))], batch=1, curve=[10.0, 15.0, 40.0, 60.0, 90.0])
    assert dear.best_alike().sizes == [1]
    assert dear.best_alike().rate == pytest.approx(1.9 / (0.999 * 5 + 10), rel=1e-3)
    useless = Planner([drafting((1.0,) * 4, (0.0,) * 4)], batch=1, curve=CURVE)
    assert useless.best_alike().sizes == [0]


@given(presents=st.lists(shares, min_size=1, max_size=3))
@settings(deadline=None, max_examples=60)
def test_the_best_plan_has_the_most_tokens_beyond_what_its_milliseconds_are_worth(presents):
    ones, smaller = [drafting(present, fixed_ms=0.5) for present in presents], len(presents) * 4
    for least_rate in (0.0, 0.05, 0.1, 0.2, 0.4):
        planner = Planner(ones, batch=len(ones), curve=CURVE, least_rate=least_rate)
        best, others = planner.best_alike(), [planner.plan([size.nodes] * len(ones)) for size in SIZES]
        rate = max(least_rate, *(other.rate for other in others))
        assert all(best.tokens - rate * best.ms >= other.tokens - rate * other.ms - 1e-9 for other in others)
        assert sum(best.sizes) <= smaller
        smaller = sum(best.sizes)


def test_a_trial_loses_more_where_a_millisecond_is_worth_more():
    planners = [
        Planner([drafting(accepted=[0.1] * 4)], batch=1, curve=CURVE, least_rate=rate) for rate in (0.0, 0.1, 0.3)
    ]
    plan = planners[0].plan([0])
    losses = [planner.trial_loss([1], plan) for planner in planners]
    longer, more = (getattr(planners[0].plan([1], usual=True), name) - getattr(plan, name) for name in ("ms", "tokens"))
    assert losses == pytest.approx([0.1 * longer - more, 0.1 * longer - more, 0.3 * longer - more])
