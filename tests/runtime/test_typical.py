import math

import numpy as np
import pytest

from spec_trt import names
from spec_trt.runtime.drafters.drafter import PassOutput
from spec_trt.runtime.sampler import Sampler
from spec_trt.runtime.sampling import Sampling
from spec_trt.runtime.tree import ROOT, TreeBuilder
from spec_trt.runtime.typical import TypicalAcceptance, typical_part


def test_typical_is_above_the_lower_of_both_bounds():
    probs = np.array([0.6, 0.3, 0.08, 0.02])
    entropy = -sum(prob * math.log(prob) for prob in probs)
    assert 0.3 * math.exp(-entropy) > 0.09
    typical = typical_part(probs, Sampling(temperature=1))
    assert typical.tolist() == [0.6, 0.3, 0, 0]
    flat = np.array([0.04, *[0.08] * 12])
    assert 0.3 * math.exp(-2.5) < 0.04
    assert (typical_part(flat, Sampling(temperature=1)) > 0).all()
    assert (typical_part(flat, Sampling(temperature=1, typical_alpha=0.9)) > 0).tolist() == [False, *[True] * 12]


@pytest.mark.parametrize("probs", [[1.0, 0.0], [0.5, 0.5], [1 / 3] * 3, [0.25] * 4])
def test_something_is_always_typical(probs):
    assert typical_part(np.array(probs), Sampling(temperature=1, typical_epsilon=1, typical_alpha=0.999)).any()


def accept(rows, chains, **sampling):
    """Verify chains below a root; every node's logits are those of its token's row."""
    builder = TreeBuilder(0)
    for chain in chains:
        builder.add_chain(ROOT, chain)
    tree = builder.build()
    sampler = Sampler(Sampling(temperature=1, **sampling), [0], vocab=len(rows))
    with np.errstate(divide="ignore"):
        logits = np.log(np.array(rows))[tree.tokens]
    tensors = {names.LOGITS: logits}
    path, extra = TypicalAcceptance(sampler).accept(tree, PassOutput(argmax=tree.tokens, tensors=tensors))
    assert sampler.position == len(path)
    return tree.tokens[path[1:]].tolist(), extra


ROWS = [[0.05, 0.5, 0.45, 0], [0.05, 0.0, 0.05, 0.9], [0.5, 0.5, 0, 0], [0, 0.2, 0.8, 0]]


def test_the_longest_typical_path_wins_then_the_likeliest():
    assert accept(ROWS, [[1], [2, 0]])[0] == [2, 0]
    assert accept(ROWS, [[2, 0], [1, 3]])[0] == [1, 3]
    assert accept(ROWS, [[1, 2], [2, 3]])[0] == [1]
    assert accept(ROWS, [[0, 1, 3]])[0] == []


def test_the_extra_token_is_typical_and_depends_on_the_seed():
    extras = [accept(ROWS, [[2]], seed=seed) for seed in range(40)]
    assert {tuple(path) for path, _ in extras} == {(2,)}
    assert {extra for _, extra in extras} == {0, 1}
    assert {accept(ROWS, [[1]], seed=seed)[1] for seed in range(40)} == {3}


def test_a_candidates_own_path_is_penalized():
    rows = [[0.25, 0.25, 0.25, 0.25], [0.1, 0.45, 0.3, 0.15], *[[0.25] * 4] * 2]
    assert accept(rows, [[1, 1]], typical_epsilon=0.3, typical_alpha=0.99)[0] == [1, 1]
    assert accept(rows, [[1, 1]], typical_epsilon=0.3, typical_alpha=0.99, repetition_penalty=4)[0] == [1]
