import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec_trt.profile.break_even import break_even_table, standing
from spec_trt.profile.recording import DraftedPass
from spec_trt.runtime.costs import Costs, DraftCost, VerifyCost

PLAIN = DraftCost(pass_ms=0.0)


def costs(draft=None, *, overhead=0.0, curve=((1, 10.0), (2, 11.0), (4, 13.0), (16, 25.0)), batches=(1,)):
    """A node costs 1 ms, the first one 10; in a batch every sequence costs as much as one."""
    points = [VerifyCost(batch=batch, nodes=nodes, past=0, ms=batch * ms) for nodes, ms in curve for batch in batches]
    return Costs(
        machine="m",
        threads=1,
        precision="fp32",
        verify=points,
        draft={"autoregressive": PLAIN} | (draft or {}),
        overhead_ms=overhead,
    )


def chain(length, accepted, past=0):
    drafts = [(0,) * depth for depth in range(1, length + 1)]
    return DraftedPass(past=past, drafts=drafts, accepted=(0,) * accepted)


def test_a_tree_must_reach_what_it_costs_in_plain_steps():
    draft = {"eagle": DraftCost(pass_ms=3.0)}
    table = break_even_table(costs(draft, overhead=2.0), 0, [1, 4, 16], [1])
    assert [row.verify_ms for row in table] == [10, 13, 25]
    assert [row.accept_length for row in table] == pytest.approx([1, 15 / 12, 27 / 12])
    assert [row.with_draft["eagle"] for row in table] == pytest.approx([15 / 12, 18 / 12, 30 / 12])
    assert "autoregressive" not in table[0].with_draft


def test_every_sequence_of_a_batch_is_drafted_for():
    draft = {"eagle": DraftCost(pass_ms=3.0)}
    [row] = break_even_table(costs(draft, overhead=2.0, batches=(1, 4)), 0, [4], [4])
    assert row.with_draft["eagle"] == pytest.approx((4 * 13 + 4 * (3 + 2)) / (4 * 10 + 4 * 2))


def test_a_method_stands_where_its_own_passes_put_it():
    """A mean over passes of several sizes is not the cost of a pass of the mean size."""
    passes = [chain(0, 0), chain(3, 3), chain(15, 0), chain(3, 1)]
    found = standing("ngram", passes, costs({"ngram": DraftCost(pass_ms=1.0)}), measured_speedup=1.6)
    assert found.nodes == (1 + 4 + 16 + 4) / 4
    assert found.verify_ms == (10 + 13 + 25 + 13) / 4
    assert found.accept_length == 1 + 4 / 4
    assert found.break_even == pytest.approx((11 + 14 + 26 + 14) / 4 / 10)
    assert found.predicted_speedup == pytest.approx(2 * 40 / 65)
    assert found.error == pytest.approx(2 * 40 / 65 / 1.6 - 1)


def test_plain_decoding_is_as_quick_as_itself():
    found = standing("autoregressive", [chain(0, 0)] * 3, costs(overhead=1.0), batches=(1, 8))
    assert (found.predicted_speedup, found.by_batch, found.error) == (1.0, {1: 1.0, 8: 1.0}, None)


def test_the_best_budget_cuts_what_is_never_accepted():
    """Of a chain of 15 only the first two are ever right, and the second seldom."""
    passes = [chain(15, 1)] * 8 + [chain(15, 2)] * 2
    found = standing("ngram", passes, costs({"ngram": DraftCost(pass_ms=0.0)}))
    by_nodes = {budget.nodes: budget for budget in found.budgets}
    assert by_nodes[0].accept_length == by_nodes[0].speedup == 1
    assert by_nodes[1].speedup == pytest.approx(2 / 1.1)
    assert by_nodes[2].accept_length == pytest.approx(2.2)
    assert by_nodes[2].speedup == pytest.approx(2.2 / 1.2)
    assert by_nodes[15].speedup == pytest.approx(found.predicted_speedup) == pytest.approx(2.2 / 2.5)
    assert found.best == by_nodes[2]


def test_a_smaller_tree_saves_the_levels_that_it_does_not_draft():
    cost = DraftCost(pass_ms=5.0, fixed_ms=1.0, level_ms=1.5, node_ms=0.25)
    found = standing("eagle", [chain(3, 1)] * 4, costs({"eagle": cost}))
    speedups = {budget.nodes: budget.speedup for budget in found.budgets}
    assert speedups[3] == pytest.approx(2 / ((13 + 5.0) / 10)) == pytest.approx(found.predicted_speedup)
    assert speedups[2] == pytest.approx(2 / ((12 + 5.0 - 1.75) / 10))
    assert speedups[1] == pytest.approx(2 / ((11 + 5.0 - 3.5) / 10))


def test_methods_that_learn_from_rejected_nodes_are_not_cut():
    found = standing("lookahead", [chain(3, 1)] * 4, costs({"lookahead": DraftCost(pass_ms=0.0)}))
    assert found.budgets == []
    assert (found.best.nodes, found.best.speedup) == (3, found.predicted_speedup)


def test_a_batch_pays_for_its_largest_tree():
    passes = [chain(0, 0), chain(15, 3)]
    found = standing("ngram", passes, costs({"ngram": DraftCost(pass_ms=0.0)}, batches=(1, 2)), batches=(1, 2))
    assert found.by_batch[1] == pytest.approx(2.5 / ((10 + 25) / 2 / 10))
    assert found.by_batch[2] == pytest.approx(2.5 / ((1 * 20 + 3 * 50) / 4 / 20))


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12)), min_size=1, max_size=20))
def test_the_largest_budget_is_the_method_as_it_is(pairs):
    passes = [chain(length, min(length, accepted)) for length, accepted in pairs]
    found = standing("ngram", passes, costs({"ngram": DraftCost(pass_ms=0.3)}))
    assert found.budgets[-1].speedup == pytest.approx(found.predicted_speedup)
    assert found.best.speedup >= found.predicted_speedup
    lengths = [budget.accept_length for budget in found.budgets]
    assert lengths == sorted(lengths)
