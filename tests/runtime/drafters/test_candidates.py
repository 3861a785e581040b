import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec_trt.runtime.drafters.candidates import ROOT_INDEX, Candidates, rerank
from spec_trt.runtime.tree import TreeBuilder

log_probs = st.sampled_from([0.0, -0.0, -1e-7, -0.5, -0.5, -1.0, -3.0, -30.0, -np.inf])


@given(
    st.lists(st.tuples(st.integers(0, 10**6), log_probs), min_size=1, max_size=40),
    st.integers(0, 50),
)
def test_reranking_keeps_the_parent_of_whatever_it_keeps(drawn, count):
    scores: list[Any] = []
    parents: list[int] = []
    for index, (parent, log_prob) in enumerate(drawn):
        parents.append(parent % (index + 1) - 1)
        above = 0.0 if parents[-1] < 0 else scores[parents[-1]]
        scores.append(above + log_prob)
    kept = rerank(scores, count)
    assert len(kept) == min(count, len(drawn))
    assert kept == sorted(set(kept))
    assert all(parents[index] in kept for index in kept if parents[index] >= 0)
    assert all(
        scores[index] <= min([scores[other] for other in kept], default=0)
        for index in set(range(len(drawn))) - set(kept)
    )


def test_ties_go_to_the_earlier_level_and_the_lower_index():
    assert rerank([-1, -1, -1, -0.5, -1], 3) == [0, 1, 3]


def test_what_is_kept_becomes_nodes_with_their_places_and_chances():
    found = Candidates()
    first = found.add(ROOT_INDEX, 7, -0.5)
    found.add(ROOT_INDEX, 8, -2.0)
    behind = found.add(first, 9, 0.25)  # above 0 by rounding
    assert found.chance([first, behind]) == pytest.approx(2 * math.exp(-0.5))
    builder = TreeBuilder(1)
    found.insert(builder, [first, behind], {first: 0, behind: 4})
    tree = builder.build()
    assert tree.tokens.tolist() == [1, 7, 9]
    assert tree.parents.tolist() == [-1, 0, 1]
    assert [tree.place(node) for node in (1, 2)] == [0, 4]
    assert tree.chances == {1: pytest.approx(math.exp(-0.5)), 2: pytest.approx(math.exp(-0.5))}
