import math

import numpy as np
import pytest

from spec_trt.runtime.allowance import UNLIMITED, Allowance
from spec_trt.runtime.drafters.filled_tree import FilledTree
from spec_trt.runtime.drafters.static_tree import StaticTree
from spec_trt.runtime.tree import TreeBuilder

TREE = StaticTree(paths=[[0], [0, 0], [1], [0, 1], [0, 0, 2], [1, 0]], source="test")
TOKENS = [[4, 5], [4, 6, 4], [9]]
CHANCES = [[0.5, 0.4], [0.9, 0.1, 0.5], [0.5]]  # of the nodes: .5 .4, .45 .05 .2, .225


def filled(*, eos_ids=frozenset(), allowance=UNLIMITED, max_depth=9):
    """The tree, and how often a level was worth drafting behind."""
    tree, builder, worth = FilledTree(TREE, max_depth, allowance, eos_ids=eos_ids), TreeBuilder(7), []
    for level, tokens, chances in zip(tree.levels, TOKENS, CHANCES, strict=False):
        count = len(level.parents)
        tree.fill(level, np.array(tokens[:count]), np.log(np.array(chances[:count], dtype=np.float32)))
        worth.append(tree.pays_to_go_on(level))
    tree.insert(builder)
    built = builder.build()
    return built, [tuple(built.tokens[built.path(node)][1:].tolist()) for node in range(1, len(built))], worth


def test_every_path_is_filled_but_for_what_stands_behind_the_end():
    assert filled()[1] == [(4,), (5,), (4, 4), (4, 6), (5, 4), (4, 4, 9)]
    assert filled(eos_ids={5})[1] == [(4,), (5,), (4, 4), (4, 6), (4, 4, 9)]
    assert filled(eos_ids={4, 5})[1] == [(4,), (5,)]
    assert filled(max_depth=1)[1] == [(4,), (5,)]
    assert filled(allowance=Allowance(nodes=2))[1] == [(4,), (4, 4)]


def test_nodes_keep_their_place_among_the_paths_and_their_chances():
    tree, paths, _ = filled()
    assert [tree.place(1 + paths.index(path)) for path in ((4,), (4, 4), (5,), (4, 6), (4, 4, 9), (5, 4))] == [
        *range(6)
    ]
    assert [tree.chances[node] for node in range(1, 7)] == pytest.approx([0.5, 0.4, 0.45, 0.05, 0.2, 0.225])


def test_where_nodes_have_a_price_those_are_kept_that_pay():
    prices = [0.3 * count for count in range(7)]
    assert filled(allowance=Allowance(nodes=6, prices=prices))[1] == [(4,), (5,), (4, 4)]
    dear_first = [0.0, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2]  # alone none would pay
    assert filled(allowance=Allowance(nodes=6, prices=dear_first))[1] == [(4,), (5,), (4, 4), (5, 4), (4, 4, 9)]
    assert filled(allowance=Allowance(nodes=6, prices=[10.0 * count for count in range(7)]))[1] == []


def test_a_level_is_worth_drafting_behind_what_is_likely_enough():
    assert filled()[2] == [True, True, False]  # behind the last there is nothing
    assert filled(eos_ids={4, 5})[2] == [False, False, False]
    allowance = Allowance(nodes=6, prices=[0.0] * 7, level_price=0.2)
    assert allowance.level_chance == pytest.approx(0.571, abs=0.01)
    assert filled(allowance=allowance)[2] == [True, False, False]
    assert filled(allowance=Allowance(nodes=6, prices=[0.0] * 7, level_price=1.0))[2] == [False, False, False]


def test_log_probabilities_above_zero_count_as_zero():
    tree, builder = FilledTree(TREE, 1, UNLIMITED, eos_ids=()), TreeBuilder(7)
    tree.fill(tree.levels[0], np.array([4, 5]), np.array([1e-3, -math.inf], dtype=np.float32))
    tree.insert(builder)
    assert builder.build().chances == {1: 1.0, 2: 0.0}
