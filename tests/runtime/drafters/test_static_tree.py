import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec_trt.errors import ConfigError
from spec_trt.runtime.drafters.static_tree import StaticTree, StaticTreeOptions

TREE = [[0], [0, 0], [1], [0, 1], [0, 0, 2], [1, 0]]


@st.composite
def trees(draw):
    """Paths in an order in which prefixes come first."""
    paths = [()]
    for _ in range(draw(st.integers(0, 12))):
        path = (*draw(st.sampled_from(paths)), draw(st.integers(0, 3)))
        if path not in paths:
            paths.append(path)
    return [list(path) for path in paths[1:]]


@given(trees())
def test_levels_hold_every_path_once_with_its_parent(paths):
    above: list[tuple[int, ...]] = [()]
    found: list[tuple[int, ...]] = []
    for level in StaticTree(paths=paths, source="test").levels:
        nodes = [(*above[parent], rank) for parent, rank in zip(level.parents, level.ranks.tolist(), strict=True)]
        assert nodes == sorted(nodes)
        assert level.inner == [index for index, node in enumerate(nodes) if list(node) in [path[:-1] for path in paths]]
        found += nodes
        inner_above = [index for index, node in enumerate(above) if list(node) in [path[:-1] for path in paths]]
        assert [inner_above[row] for row in level.rows.tolist()] == level.parents
        above = nodes
    assert sorted(found) == sorted(map(tuple, paths))


def test_the_tree_is_the_heads_own_or_a_files_cut_as_asked(tmp_path):
    file = tmp_path / "tree.json"
    file.write_text("[[1], [1, 0]]")
    assert StaticTreeOptions().chosen(TREE, ranks=3).paths == TREE
    assert StaticTreeOptions(nodes=2).chosen(TREE, ranks=3).paths == [[0], [0, 0]]
    assert StaticTreeOptions(nodes=99).chosen(TREE, ranks=3).paths == TREE
    assert StaticTreeOptions(tree=str(file)).chosen(TREE, ranks=3).paths == [[1], [1, 0]]
    assert StaticTreeOptions(tree=str(file), nodes=1).chosen(TREE, ranks=2, depth=1 + 1).depth == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[0]", "can't read the tree in .*tree.json"),
        ("{}", "must hold a JSON list of lists of ranks"),
        ("[[0], 1]", "must hold a JSON list of lists of ranks"),
        ("[[-1]]", "must hold a JSON list of lists of ranks"),
        ("[[true]]", "must hold a JSON list of lists of ranks"),
        ("[[]]", r"found \[\] out of place"),
        ("[[0], [0]]", r"found \[0\] out of place"),
        ("[[0, 1], [0]]", r"found \[0, 1\] out of place"),
        ("[[3]]", "has rank 3, the head gives ranks below 3"),
        ("[[0], [0, 0], [0, 0, 0]]", "is 3 levels deep, the heads draft 2"),
    ],
)
def test_a_file_without_a_tree_that_fits_is_refused(tmp_path, text, message):
    file = tmp_path / "tree.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        StaticTreeOptions(tree=str(file)).chosen(TREE, ranks=3, depth=2)


def test_a_missing_file_is_named():
    with pytest.raises(ConfigError, match=r"can't read the tree in nowhere\.json .*expected a JSON list"):
        StaticTreeOptions(tree="nowhere.json").chosen(TREE, ranks=3)
