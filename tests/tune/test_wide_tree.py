import pytest

from spec_trt.tune.wide_tree import wide_tree


@pytest.mark.parametrize("default", [[[0]], [[3]], [[0], [0, 5]], [[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]]])
@pytest.mark.parametrize("nodes", [1, 20, 64])
def test_no_parent_and_no_sibling_in_front_is_missing(default, nodes):
    tree = wide_tree(default, ranks=10, depth=4, nodes=nodes)
    found = set(tree)
    assert len(found) == len(tree)
    assert found >= set(map(tuple, default))
    for path in tree:
        assert path[:-1] in {(), *found}
        assert all((*path[:-1], rank) in found for rank in range(path[-1]))
    assert len(tree) <= max(nodes, 8)
    assert tree == sorted(tree, key=lambda path: (len(path), path))


def test_it_stays_within_what_the_head_gives():
    tree = wide_tree([[0]], ranks=3, depth=2, nodes=100)
    assert len(tree) == 3 + 9
