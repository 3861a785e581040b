import pytest

from spec_trt.tune.fit import fit_tree, replayed_speedup
from tests.tune.trees import trace, tree_cost

WIDE = [(0,), (1,), (0, 0), (0, 0, 0)]
FREE = tree_cost([10.0] * 5)
DEAR = tree_cost([10.0 + 100.0 * nodes for nodes in range(5)])

# In spans of four the first candidate is right till the end of the span, then the second one.
SPANS = trace(*[[0, 0, 0], [0, 0], [0], [1]] * 50)


def test_everything_that_is_ever_accepted_is_kept_where_nodes_are_free():
    tree = fit_tree([SPANS], [(0,)], WIDE, FREE, nodes=4)
    assert sorted(tree) == [(0,), (0, 0), (0, 0, 0)] or sorted(tree) == sorted(WIDE)
    assert replayed_speedup([SPANS], tree, FREE) == 4


def test_where_nodes_cost_more_than_they_gain_the_smallest_tree_is_left():
    assert fit_tree([SPANS], WIDE, WIDE, DEAR, nodes=4) == [(0,)]


def test_acceptance_is_counted_where_the_trees_own_passes_begin():
    """Behind the spans' beginnings the second candidate is never right: over all positions it is as often as any."""
    price = tree_cost([10.0, 10.0, 10.0, 10.0, 11.0])
    assert fit_tree([SPANS], [(0,)], WIDE, price, nodes=4) == [(0,), (0, 0), (0, 0, 0)]


def test_the_default_tree_stays_where_no_other_is_quicker():
    default = [(0,), (0, 0), (0, 0, 0)]
    assert fit_tree([SPANS], default, WIDE, tree_cost([10.0, 10.0, 10.0, 10.0, 30.0]), nodes=4) == default


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_no_tree_is_larger_than_allowed(nodes):
    assert len(fit_tree([SPANS], WIDE, WIDE, FREE, nodes=nodes)) <= nodes
