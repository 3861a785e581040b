import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_trt.errors import ConfigError
from spec_trt.runtime.allowance import UNLIMITED, Allowance
from spec_trt.runtime.draft_model import DraftStep
from spec_trt.runtime.drafters.eagle2 import DynamicGrower, Eagle2Options
from spec_trt.runtime.tree import TreeBuilder

VOCAB = 12


class TableDraft:
    """A draft model whose candidates are drawn from a seed and the path alone."""

    def __init__(self, seed, top_k, *, levels_of=(0.0, -0.25, -0.5, -1.0, -2.5)):
        self.facts = SimpleNamespace(top_k=top_k)
        self.seed, self.levels_of = seed, levels_of
        self.paths = [()]
        self.expanded = []

    def first(self):
        return self.step(0, [()])

    def expand(self, step, rows, tokens):
        paths = [(*self.paths[row], int(token)) for row, token in zip(rows, tokens, strict=True)]
        self.expanded += paths
        return self.step(step.level + 1, paths)

    def step(self, level, paths):
        self.paths = paths
        drawn = [self.candidates(path) for path in paths]
        return DraftStep(
            level=level,
            token_ids=np.array([tokens for tokens, _ in drawn], dtype=np.int64),
            log_probs=np.array([scores for _, scores in drawn], dtype=np.float32),
            features=None,
            visible=np.empty((len(paths), 0), dtype=np.bool_),
        )

    def candidates(self, path):
        random = np.random.default_rng([self.seed, *path])
        tokens = random.permutation(VOCAB)[: self.facts.top_k]
        scores = random.choice(self.levels_of, size=self.facts.top_k)
        return tokens.tolist(), sorted(scores.tolist(), reverse=True)


def grow(draft, *, max_depth=9, eos_ids=(), allowance=UNLIMITED, **options):
    builder = TreeBuilder(0)
    options = {"node_probability": 0, "level_probability": 0} | options
    DynamicGrower(Eagle2Options(**options), model=draft, eos_ids=frozenset(eos_ids)).grow(
        builder, draft.first(), max_depth, allowance
    )
    tree = builder.build()
    return {tuple(tree.tokens[tree.path(node)][1:].tolist()) for node in range(1, len(tree))}


def reference(draft, *, max_depth, eos_ids, depth, top_k, total_tokens, node_probability, level_probability):
    """EAGLE-2's tree as its definition has it: expand everything that a round calls for, then sort it all."""
    lowest = math.log(node_probability) if node_probability else -math.inf
    levels: list[list[Any]] = [[(score, (token,)) for token, score in zip(*draft.candidates(()), strict=True)][:top_k]]
    for _ in range(min(depth, max_depth - 1)):
        likely = [item for item in sorted(levels[-1], key=lambda item: -item[0]) if item[0] >= lowest]
        beam = [item for item in likely if item[1][-1] not in eos_ids][:top_k]
        if sum(math.exp(score) for score, _ in beam) < level_probability:
            break
        levels.append(
            [
                (score + added, (*path, token))
                for score, path in beam
                for token, added in list(zip(*draft.candidates(path), strict=True))[:top_k]
            ]
        )
    flat = [item for level in levels for item in level]
    return {path for score, path in sorted(flat, key=lambda item: -item[0])[: total_tokens - 1] if score >= lowest}


@given(
    seed=st.integers(0, 10_000),
    given_k=st.integers(1, 6),
    depth=st.integers(0, 4),
    top_k=st.integers(1, 5),
    total_tokens=st.integers(1, 40),
    max_depth=st.integers(1, 6),
    eos_ids=st.sets(st.integers(0, VOCAB - 1), max_size=4),
    least=st.tuples(st.sampled_from([0.0, 0.1, 0.3]), st.sampled_from([0.0, 0.5, 1.0])),
)
@settings(deadline=None)
def test_the_tree_is_the_definitions(seed, given_k, depth, top_k, total_tokens, max_depth, eos_ids, least):
    options = {"depth": depth, "top_k": min(top_k, given_k), "total_tokens": total_tokens}
    options |= {"node_probability": least[0], "level_probability": least[1]}
    draft = TableDraft(seed, given_k)
    found = grow(draft, max_depth=max_depth, eos_ids=eos_ids, **options | {"top_k": top_k})
    assert found == reference(draft, max_depth=max_depth, eos_ids=eos_ids, **options)
    assert len(found) <= total_tokens - 1
    assert all(len(path) <= min(depth + 1, max_depth) for path in found)
    assert not any(token in eos_ids for path in found for token in path[:-1])


def test_a_level_that_can_no_longer_matter_is_not_drafted():
    certain = TableDraft(1, 4, levels_of=(-0.1,))
    grow(certain, depth=4, top_k=4, total_tokens=5)
    assert certain.expanded == []
    grow(certain, depth=4, top_k=4, total_tokens=6)
    assert {len(path) for path in certain.expanded} == {1}


def test_log_probabilities_above_zero_count_as_zero():
    draft = TableDraft(1, 4, levels_of=(1e-3,))
    assert all(path[:-1] in found or len(path) == 1 for found in [grow(draft, total_tokens=9)] for path in found)


@pytest.mark.parametrize("total_tokens", [1, 2, 12])
def test_the_tree_has_as_many_nodes_as_asked(total_tokens):
    assert len(grow(TableDraft(3, 6), total_tokens=total_tokens)) == total_tokens - 1


def test_an_unsure_draft_is_asked_for_less():
    unsure = TableDraft(1, 4, levels_of=(-2.0,))
    assert grow(unsure, depth=4, total_tokens=12, level_probability=0.6) == grow(unsure, depth=0, total_tokens=12)
    assert grow(unsure, depth=4, total_tokens=12, node_probability=0.2) == set()
    assert len(grow(unsure, depth=4, total_tokens=12, node_probability=0.1, level_probability=0.2)) == 3


def test_prices_take_the_place_of_the_probabilities():
    unsure = TableDraft(1, 4, levels_of=(-2.0,))  # nodes of probability 0.135, then 0.018

    def priced(price, level_price=0.0, nodes=11):
        allowance = Allowance(
            nodes=nodes, prices=[price * count for count in range(nodes + 1)], level_price=level_price
        )
        return grow(unsure, depth=4, top_k=3, total_tokens=12, allowance=allowance, node_probability=0.9)

    assert priced(0.2) == set()
    assert len(priced(0.1)) == 3
    assert len(priced(0.0)) == 11
    assert len(priced(0.01, level_price=1.0)) == 3  # a level behind them is too dear
    assert len(priced(0.1, nodes=2)) == 2
    dear_first = Allowance(nodes=11, prices=[0.0, *(0.3 + 0.01 * count for count in range(11))])
    assert len(grow(unsure, depth=0, top_k=3, total_tokens=12, allowance=dear_first)) == 3  # together they pay
    assert len(grow(unsure, depth=0, top_k=2, total_tokens=12, allowance=dear_first)) == 0


@pytest.mark.parametrize("name", ["node_probability", "level_probability"])
@pytest.mark.parametrize("value", [-0.1, 1.5, True, "much", float("nan")])
def test_probabilities_are_checked(name, value):
    with pytest.raises(ConfigError, match=f"{name} must be a number from 0 to 1"):
        Eagle2Options(**{name: value})
