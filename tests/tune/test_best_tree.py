import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec_trt.errors import ConfigError
from spec_trt.tune.best_tree import best_tree, tokens_per_ms
from tests.tune.trees import all_trees, tree_cost

shares = st.floats(0, 1)
milliseconds = st.floats(0, 5)


@st.composite
def reaches(draw):
    """Up to eight nodes, each with a share of its parent's."""
    reach = {(): 1.0}
    for _ in range(draw(st.integers(1, 8))):
        parent = draw(st.sampled_from(sorted(reach)))
        rank = sum(path[:-1] == parent for path in reach if path)
        reach[(*parent, rank)] = reach[parent] * draw(shares)
    del reach[()]
    return reach


@st.composite
def costs(draw):
    steps = draw(st.lists(milliseconds, min_size=8, max_size=8))
    verify = [1.0]
    for step in steps:
        verify.append(verify[-1] + step)
    return tree_cost(verify, fixed_ms=draw(milliseconds), level_ms=draw(milliseconds), node_ms=draw(milliseconds))


@given(reaches(), costs(), st.integers(1, 8))
def test_no_other_tree_of_any_size_and_depth_is_quicker(reach, cost, nodes):
    tree = best_tree(reach, cost, nodes=nodes)
    assert sorted(tree) in [sorted(other) for other in all_trees(list(reach)) if len(other) <= nodes]
    quickest = max(tokens_per_ms(other, reach, cost) for other in all_trees(list(reach)) if len(other) <= nodes)
    assert tokens_per_ms(tree, reach, cost) == pytest.approx(quickest, rel=1e-9)


@given(reaches(), costs())
def test_parents_come_first_and_the_likelier_before_the_less_likely(reach, cost):
    tree = best_tree(reach, cost, nodes=8)
    assert all(path[:-1] in {(), *tree[:place]} for place, path in enumerate(tree))
    assert [reach[path] for path in tree] == sorted((reach[path] for path in tree), reverse=True)


CHAIN = {(0,) * depth: 0.9**depth for depth in range(1, 13)}


@pytest.mark.parametrize("size", range(1, 13))
def test_the_size_is_found_wherever_the_cost_jumps(size):
    verify = [10.0 if nodes <= size else 1000.0 for nodes in range(13)]
    assert best_tree(CHAIN, tree_cost(verify), nodes=12) == list(CHAIN)[:size]


@pytest.mark.parametrize(("level_ms", "levels"), [(0.0, 3), (2.0, 2), (100.0, 1)])
def test_levels_that_cost_too_much_are_left_out(level_ms, levels):
    reach = {(0,): 0.6, (1,): 0.3, (0, 0): 0.5, (0, 1): 0.1, (0, 0, 0): 0.1}
    tree = best_tree(reach, tree_cost([10.0] * 6, level_ms=level_ms), nodes=5)
    assert max(map(len, tree)) == levels
    assert set(tree) == {path for path in reach if len(path) <= levels}


def test_a_node_that_costs_a_run_of_its_own_is_not_drafted_behind():
    reach = {(0,): 0.5, (1,): 0.4, (0, 0): 0.35, (1, 0): 0.3}
    cheap, dear = (tree_cost([10.0] * 5, node_ms=node_ms) for node_ms in (0.1, 2.5))
    assert best_tree(reach, cheap, nodes=3) == [(0,), (1,), (0, 0)]
    assert best_tree(reach, cheap, nodes=4) == [(0,), (1,), (0, 0), (1, 0)]
    assert best_tree(reach, dear, nodes=4) == [(0,), (1,)]


def test_where_nothing_is_ever_accepted_the_cheapest_tree_is_taken():
    assert best_tree({(0,): 0.0, (1,): 0.0, (0, 0): 0.0}, tree_cost([1.0, 2.0, 3.0, 4.0]), nodes=3) in ([(0,)], [(1,)])


def test_nothing_to_choose_from_is_refused():
    for reach, nodes in (({}, 3), (CHAIN, 0)):
        with pytest.raises(ConfigError, match="at least one node"):
            best_tree(reach, tree_cost([1.0] * 4), nodes=nodes)
