from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spec_trt.runtime.accept import accept_greedy, emitted_tokens
from spec_trt.runtime.tree import ROOT, Tree, TreeBuilder


@st.composite
def verified_trees(draw: st.DrawFn) -> tuple[Tree, list[int]]:
    builder = TreeBuilder(0)
    for _ in range(draw(st.integers(0, 20))):
        builder.add(draw(st.integers(0, len(builder) - 1)), draw(st.integers(0, 2)))
    tree = builder.build()
    return tree, draw(st.lists(st.integers(0, 2), min_size=len(tree), max_size=len(tree)))


def is_accepted(tree: Tree, argmax: list[int], node: int) -> bool:
    path = tree.path(node)
    return all(argmax[parent] == tree.tokens[child] for parent, child in pairwise(path))


@given(verified_trees())
def test_the_path_is_the_deepest_node_whose_whole_path_the_target_takes(verified: tuple[Tree, list[int]]):
    tree, argmax = verified
    path, extra = accept_greedy(tree, np.array(argmax))
    accepted = [node for node in range(len(tree)) if is_accepted(tree, argmax, node)]
    deepest = max(accepted, key=lambda node: len(tree.path(node)))
    assert path == tree.path(deepest) == sorted(accepted)
    assert extra == argmax[deepest]


def test_a_root_alone_gives_its_argmax():
    tree = TreeBuilder(5).build()
    assert accept_greedy(tree, np.array([7])) == ([ROOT], 7)


def test_a_full_match_still_gives_the_extra_token():
    builder = TreeBuilder(5)
    builder.add_chain(ROOT, [6, 7])
    path, extra = accept_greedy(builder.build(), np.array([6, 7, 8]))
    assert (path, extra) == ([0, 1, 2], 8)
    assert emitted_tokens(builder.build(), path, extra) == [6, 7, 8]


def test_results_are_plain_integers():
    builder = TreeBuilder(5)
    builder.add_chain(ROOT, [6])
    path, extra = accept_greedy(builder.build(), np.array([6, 7]))
    assert {type(number) for number in [*path, extra, *emitted_tokens(builder.build(), path, extra)]} == {int}
