"""Random operands of `TreeAttention`."""

from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from spec_trt.plugins.tree_attention.reference import UNLIMITED_WINDOW

INPUTS = ("query", "key", "value", "past_key", "past_value", "past_lens", "tree_mask", "positions")
Operands = dict[str, Any]


@st.composite
def operands(draw: st.DrawFn) -> Operands:
    """All eight inputs: ragged lengths, tentative rows, an empty cache and unused rows among them."""
    batch, kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    nodes, tentative, past = draw(st.integers(1, 6)), draw(st.integers(0, 4)), draw(st.integers(0, 9))
    return make_operands(draw(st.integers(0, 2**16)), batch, kv_heads, group, nodes, tentative, past)


def make_operands(
    seed: int, batch: int, kv_heads: int, group: int, nodes: int, tentative: int, past: int, head_dim: int = 4
) -> Operands:
    """Draw values for given sizes; the mask's own diagonal is true."""
    random = np.random.default_rng(seed)
    past_lens = random.integers(0, max(past - tentative, 0) + 1, batch)
    mask = random.random((batch, nodes, tentative + nodes)) < 0.5
    mask[:, np.arange(nodes), tentative + np.arange(nodes)] = True

    def rows(heads: int, count: int) -> NDArray[np.float32]:
        return random.standard_normal((batch, heads, count, head_dim), dtype=np.float32)

    return {
        "query": rows(kv_heads * group, nodes),
        "key": rows(kv_heads, nodes),
        "value": rows(kv_heads, nodes),
        "past_key": rows(kv_heads, past),
        "past_value": rows(kv_heads, past),
        "past_lens": past_lens,
        "tree_mask": mask,
        "positions": past_lens[:, None] + random.integers(0, 4, (batch, tentative + nodes)),
    }


# The op's attributes in the four variants of the function; a model with windows has layers without one.
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"scale": 0.7},
    "softcap": {"scale": 0.7, "softcap": 1.5},
    "window": {"scale": 0.7, "sliding_window": 3},
    "window and softcap": {"scale": 0.7, "softcap": 1.5, "sliding_window": 3},
    "unlimited window": {"scale": 0.7, "sliding_window": UNLIMITED_WINDOW},
}


def inputs_of(operands: Operands, attributes: dict[str, Any]) -> Operands:
    """The inputs that a node with these attributes takes."""
    names = INPUTS if "sliding_window" in attributes else INPUTS[:-1]
    return {name: operands[name] for name in names}
