"""The trees of heads that name none."""

import pytest

from spec_trt.export.head_trees import default_eagle_tree, default_medusa_tree

TREES = {
    "medusa": default_medusa_tree(4, 10),
    "one head": default_medusa_tree(1, 10),
    "six heads, three ids": default_medusa_tree(6, 3),
    "eagle": default_eagle_tree(10),
    "eagle, one id": default_eagle_tree(1),
}


@pytest.mark.parametrize("name", TREES)
def test_a_tree_is_in_order_and_whole(name: str):
    tree = TREES[name]
    assert tree == sorted(tree, key=lambda path: (len(path), path))
    assert all(path[:-1] in tree for path in tree if len(path) > 1)


@pytest.mark.parametrize(
    ("name", "nodes", "depth", "ranks"),
    [
        ("medusa", 12, 3, 4),
        ("one head", 10, 1, 10),
        ("six heads, three ids", 12, 3, 3),
        ("eagle", 10, 4, 3),
        ("eagle, one id", 4, 4, 1),
    ],
)
def test_a_tree_is_small_and_fits_its_heads(name: str, nodes: int, depth: int, ranks: int):
    tree = TREES[name]
    assert (len(tree), max(map(len, tree)), 1 + max(map(max, tree))) == (nodes, depth, ranks)
