"""The law of sampled outputs is the target's: by chi-square against its enumeration, and broken rules are noticed.

The draws are seeded, so a test's p-value is always the same. Of right rules one in 1000 would give a p-value below
`SIGNIFICANCE` by chance.
"""

from dataclasses import replace
from math import isclose

import pytest

from spec_trt.runtime import rejection, sampler, uniforms
from spec_trt.runtime.drafters import METHODS
from spec_trt.runtime.sampler import Sampler
from spec_trt.runtime.sampling import Sampling
from tests.runtime.law import chi_square_p_value, draw_outputs, expected_law

SIGNIFICANCE, DRAWS = 1e-3, 20_000
SAMPLING = Sampling(temperature=0.8, top_p=0.97, repetition_penalty=1.3)
OPTIONS: dict[str, dict[str, object]] = {
    "ngram": {"min_ngram": 1},
    "jacobi": {"num_draft_tokens": 2},
    "lookahead": {"window": 2},
}


@pytest.fixture(scope="module")
def law():
    return expected_law(SAMPLING)


def test_the_enumerated_law_is_one(law):
    assert isclose(sum(law.values()), 1)
    assert sum(probability > 0 for probability in law.values()) > 50


@pytest.mark.parametrize("method", METHODS)
def test_outputs_have_the_targets_law(law, method):
    draws = draw_outputs(method, OPTIONS.get(method, {}), SAMPLING, seeds=range(DRAWS))
    assert chi_square_p_value(draws.outputs, law) > SIGNIFICANCE
    assert draws.outputs.total() == DRAWS
    assert draws.accept_length > (1.1 if METHODS[method].head is None else 1.3) or method == "autoregressive"


def drawn_drafts(count=DRAWS, sampling=SAMPLING):
    return draw_outputs("eagle", {}, replace(sampling, draft_sampling=True), seeds=range(count))


def test_outputs_of_drawn_drafts_have_the_targets_law(law):
    draws = drawn_drafts()
    assert chi_square_p_value(draws.outputs, law) > SIGNIFICANCE
    assert draws.accept_length > 2


def test_no_number_is_used_twice(monkeypatch):
    used = []

    def noted(*counter):
        used.append(counter)
        return uniforms.uniform(*counter)

    monkeypatch.setattr(sampler, "uniform", noted)
    drawn_drafts(50)
    assert len(used) == len(set(used)) > 300
    assert {stream for _, stream, *_ in used} == {"token", "accept", "draft"}


def draft_for_its_rest(monkeypatch):
    """Every sibling is judged by what the first was drawn from."""
    monkeypatch.setattr(rejection, "without", lambda probs, _token: probs)


def extra_token_without_temperature(monkeypatch):
    draw = Sampler.draw
    monkeypatch.setattr(Sampler, "draw", lambda self, probs: draw(self, probs**self.sampling.temperature))


def siblings_out_of_order(monkeypatch):
    def reversed_children(tree, node):
        left = tree.draft_probs.get(node)
        for child in reversed(tree.topology.children[node]):
            token = int(tree.tokens[child])
            yield child, token, left
            left = rejection.without(left, token)

    monkeypatch.setattr(rejection, "drawn_children", reversed_children)


def least_likely_sibling_dropped(monkeypatch):
    drawn_children = rejection.drawn_children

    def pruned_children(tree, node):
        children = list(drawn_children(tree, node))
        least = min(children, key=lambda drawn: tree.draft_probs[node][drawn[1]], default=None)
        return [drawn for drawn in children if drawn is not least or len(children) == 1]

    monkeypatch.setattr(rejection, "drawn_children", pruned_children)


MUTATIONS = [
    draft_for_its_rest,
    extra_token_without_temperature,
    siblings_out_of_order,
    least_likely_sibling_dropped,
]


@pytest.mark.parametrize("mutate", MUTATIONS)
def test_a_broken_rule_is_noticed(law, mutate, monkeypatch):
    mutate(monkeypatch)
    draws = drawn_drafts(DRAWS // 4)
    assert chi_square_p_value(draws.outputs, law) < 1e-3 * SIGNIFICANCE
