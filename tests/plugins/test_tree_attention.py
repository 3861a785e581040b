"""The reference is the op's definition: small cases that can be checked by eye."""

import numpy as np
import pytest

from spec_trt.plugins.tree_attention.reference import UNLIMITED_WINDOW, tree_attention, visible_keys
from tests.plugins.operands import VARIANTS, inputs_of, make_operands

# Two nodes, two tentative columns before them.
MASK = np.array([[[True, False, True, False], [False, True, True, True]]])


def visible(past: int, past_len: int, **window) -> list[str]:
    """Rows as text, one character per key."""
    rows = visible_keys(past, np.array([past_len]), MASK, **window)[0]
    return ["".join("x" if seen else "." for seen in row) for row in rows]


def test_committed_rows_are_seen_and_tentative_rows_follow_the_mask():
    assert visible(past=6, past_len=3) == ["xxxx..x.", "xxx.x.xx"]


def test_rows_behind_the_tentative_ones_are_hidden():
    assert visible(past=6, past_len=1) == ["xx....x.", "x.x...xx"]


def test_an_empty_buffer_leaves_the_own_rows():
    assert visible(past=0, past_len=0) == ["x.", "xx"]


def test_the_window_counts_positions_not_rows():
    positions = np.array([[3, 4, 3, 5]])
    assert visible(past=6, past_len=3, positions=positions, sliding_window=2) == ["..xx..x.", "....x..x"]


def test_keys_ahead_of_a_node_are_outside_its_window():
    positions = np.array([[9, 9, 3, 5]])
    assert visible(past=6, past_len=3, positions=positions, sliding_window=UNLIMITED_WINDOW) == ["xxx...x.", "xxx...xx"]


def test_equal_scores_average_what_is_visible():
    one = np.ones((1, 1, 2, 1), np.float32)
    past = np.arange(6, dtype=np.float32).reshape(1, 1, 6, 1)
    out = tree_attention(one, one, one * 10, past * 0 + 1, past, np.array([3]), MASK, scale=1.0)
    np.testing.assert_allclose(out.ravel(), [(0 + 1 + 2 + 3 + 10) / 5, (0 + 1 + 2 + 4 + 10 + 10) / 6], rtol=1e-6)


def test_query_heads_share_key_heads_in_order():
    operands = inputs_of(make_operands(0, 1, 2, 3, 4, 0, 5), VARIANTS["plain"])
    out = tree_attention(**operands, scale=0.7)
    for head in range(6):
        alone = {name: value[:, [head // 3]] if value.ndim == 4 else value for name, value in operands.items()}
        alone["query"] = operands["query"][:, [head]]
        np.testing.assert_allclose(tree_attention(**alone, scale=0.7), out[:, [head]], rtol=1e-6)


def test_softcap_bounds_the_scores():
    operands = inputs_of(make_operands(0, 1, 1, 1, 4, 0, 5), VARIANTS["plain"])
    sharp = tree_attention(**operands, scale=100.0)
    assert np.abs(tree_attention(**operands, scale=100.0, softcap=0.01) - sharp).max() > 0.1
    np.testing.assert_allclose(
        tree_attention(**operands, scale=1.0, softcap=1e4), tree_attention(**operands, scale=1.0), atol=1e-5
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_hidden_rows_change_nothing(variant: str):
    attributes = VARIANTS[variant]
    operands = inputs_of(make_operands(3, 2, 2, 2, 4, 2, 9), attributes)
    out = tree_attention(**operands, **attributes)
    for sequence, committed in enumerate(operands["past_lens"]):
        operands["past_key"][sequence, :, committed + 2 :] = 1e6
        operands["past_value"][sequence, :, committed + 2 :] = 1e6
    np.testing.assert_array_equal(tree_attention(**operands, **attributes), out)
