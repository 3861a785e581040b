import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec_trt.errors import ConfigError
from spec_trt.heads.static_tree import best_static_tree


def weight(path, accuracy):
    product = 1.0
    for depth, rank in enumerate(path):
        product *= accuracy[depth][rank]
    return product


def test_the_heaviest_nodes_are_taken():
    accuracy = [[0.6, 0.2], [0.5, 0.1]]
    assert best_static_tree(accuracy, 3) == [[0], [1], [0, 0]]
    assert best_static_tree(accuracy, 1) == [[0]]


def test_a_tree_ends_where_there_is_nothing_more():
    assert best_static_tree([[0.5, 0.5], [0.5]], 100) == [[0], [1], [0, 0], [1, 0]]


shares = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=3)


@given(st.lists(shares, min_size=1, max_size=3), st.integers(1, 8))
def test_no_other_tree_expects_more(accuracy, nodes):
    tree = best_static_tree(accuracy, nodes)
    assert all(len(path) == 1 or path[:-1] in tree for path in tree)
    every = [
        list(path)
        for depth in range(1, len(accuracy) + 1)
        for path in itertools.product(*(range(len(ranks)) for ranks in accuracy[:depth]))
    ]
    best = sorted((weight(path, accuracy) for path in every), reverse=True)[: len(tree)]
    assert sum(weight(path, accuracy) for path in tree) == pytest.approx(sum(best))


@pytest.mark.parametrize("accuracy", [[], [[]], [[1.5]], [[-0.1]], [[float("nan")]]])
def test_nonsense_is_refused(accuracy):
    with pytest.raises(ConfigError):
        best_static_tree(accuracy, 4)
