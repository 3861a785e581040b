import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec_trt.errors import ConfigError
from spec_trt.runtime.tree import ROOT, Tree, TreeBuilder, topology_of


def make_tree(tokens: list[int], parents: list[int]) -> Tree:
    return Tree(tokens=np.array(tokens, dtype=np.int64), topology=topology_of(tuple(parents)))


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    builder = TreeBuilder(draw(st.integers(0, 3)))
    for _ in range(draw(st.integers(0, 24))):
        builder.add(draw(st.integers(0, len(builder) - 1)), draw(st.integers(0, 3)))
    return builder.build()


def ancestors(tree: Tree, node: int) -> list[int]:
    return [] if node == ROOT else [*ancestors(tree, int(tree.parents[node])), int(tree.parents[node])]


@given(trees())
def test_depths_paths_and_mask_follow_the_ancestors(tree: Tree):
    for node in range(len(tree)):
        assert tree.path(node) == [*ancestors(tree, node), node]
        assert tree.depths[node] == len(ancestors(tree, node))
        assert np.flatnonzero(tree.mask[node]).tolist() == [*ancestors(tree, node), node]


@given(trees())
def test_arrays_have_the_documented_types(tree: Tree):
    assert tree.depths.dtype == tree.tokens.dtype == tree.parents.dtype == np.int64
    assert tree.mask.dtype == np.bool_
    assert tree.mask.shape == (len(tree), len(tree))


@given(trees())
def test_children_are_the_nodes_by_parent_and_token(tree: Tree):
    expected = {(int(tree.parents[node]), int(tree.tokens[node])): node for node in range(len(tree)) if node != ROOT}
    for parent in range(len(tree)):
        for token in range(4):
            assert tree.child(parent, token) == expected.get((parent, token))


@given(st.lists(st.lists(st.integers(0, 2), max_size=5), max_size=8))
def test_a_builder_is_a_trie_of_its_chains(chains: list[list[int]]):
    builder = TreeBuilder(9)
    nodes = [builder.add_chain(ROOT, chain) for chain in chains]
    tree = builder.build()
    for chain, chain_nodes in zip(chains, nodes, strict=True):
        assert tree.path(chain_nodes[-1] if chain else ROOT) == [ROOT, *chain_nodes]
        assert tree.tokens[chain_nodes].tolist() == chain
    prefixes = {tuple(chain[:size]) for chain in chains for size in range(1, len(chain) + 1)}
    assert len(tree) == len(builder) == 1 + len(prefixes)


def test_a_builder_can_grow_after_building():
    builder = TreeBuilder(1)
    root_alone = builder.build()
    builder.add(ROOT, 2)
    assert len(root_alone) == 1
    assert len(builder.build()) == 2


@pytest.mark.parametrize(
    ("tokens", "parents", "message"),
    [
        ([], [], "a parent must come before"),
        ([1, 2], [-1], "as many tokens as parents"),
        ([1], [0], "a parent must come before"),
        ([1, 2], [-1, 1], "a parent must come before"),
        ([1, 2], [-1, -1], "a parent must come before"),
        ([1, 2, 3], [-1, 2, 0], "a parent must come before"),
        ([1, 2, 2], [-1, 0, 0], "siblings must have distinct tokens"),
    ],
)
def test_arrays_that_are_no_tree_are_refused(tokens: list[int], parents: list[int], message: str):
    with pytest.raises(ConfigError, match=message):
        make_tree(tokens, parents)


def test_equal_tokens_under_different_parents_are_fine():
    assert make_tree([1, 2, 2], [-1, 0, 1]).depths.tolist() == [0, 1, 2]


def test_trees_of_one_shape_share_what_the_shape_decides():
    first, second = make_tree([1, 2, 3], [-1, 0, 0]), make_tree([4, 5, 6], [-1, 0, 0])
    assert first.topology is second.topology
    assert first.topology is not make_tree([1, 2, 3], [-1, 0, 1]).topology
    for array in (first.mask, first.depths, first.parents):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
