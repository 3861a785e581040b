import math

import pytest
import torch

from spec_trt.runtime.near_tie import NEAR_TIE_LOGITS, Comparison, compare_outputs
from spec_trt.runtime.sampling import Sampling
from spec_trt.runtime.uniforms import uniform
from tests.runtime.fake_engine import fake_engine
from tests.runtime.fakes import FakeTarget


@pytest.fixture
def engine(tmp_path):
    return fake_engine(tmp_path, FakeTarget(vocab=8, order=2))


def with_gap(engine, monkeypatch, gap):
    asked = []
    logits = torch.zeros(8)
    logits[3], logits[5] = 2.0, 2.0 + gap

    def next_logits(token_ids):
        asked.append(token_ids)
        return logits

    monkeypatch.setattr(engine, "next_logits", next_logits)
    return asked


def test_equal_outputs_ask_nothing(engine, monkeypatch):
    asked = with_gap(engine, monkeypatch, 0.0)
    assert compare_outputs(engine, [1], [2, 3], [2, 3]) == Comparison(verdict="equal")
    assert asked == []


@pytest.mark.parametrize(
    ("expected", "found", "position"), [([2, 3, 4], [2, 5, 4], 1), ([2, 3], [2], 1), ([2, 5, 1], [2, 5, 1, 3], 3)]
)
def test_the_first_difference_is_judged_on_its_own_prefix(engine, monkeypatch, expected, found, position):
    engine.manifest.model.eos_ids.append(5)
    bound = NEAR_TIE_LOGITS["fp32"]
    asked = with_gap(engine, monkeypatch, bound / 2)
    near = compare_outputs(engine, [1, 1], expected, found)
    assert (near.verdict, near.position) == ("near_tie", position)
    assert near.gap == pytest.approx(bound / 2, rel=1e-3)
    assert asked == [[1, 1, *expected[:position]]]
    with_gap(engine, monkeypatch, bound * 2)
    assert compare_outputs(engine, [1, 1], expected, found).verdict == "different"


def test_a_token_that_is_no_candidate_is_no_near_tie(engine, monkeypatch):
    with_gap(engine, monkeypatch, 0.0)
    assert compare_outputs(engine, [1], [3], [5]).verdict == "near_tie"
    assert compare_outputs(engine, [1], [3], [6]).verdict == "different"
    assert compare_outputs(engine, [1], [3], []).verdict == "different"  # no end-of-sequence id: it can't have ended


BOUND = NEAR_TIE_LOGITS["fp32"]


def drawn_from(engine, monkeypatch, logits, expected, found, **sampling):
    """Compare outputs whose second token was drawn from logits."""
    row = torch.full((8,), -math.inf, dtype=torch.float64)
    row[list(logits)] = torch.tensor(list(logits.values()), dtype=torch.float64)
    monkeypatch.setattr(engine, "next_logits", lambda _token_ids: row)
    return compare_outputs(engine, [1, 1], [2, expected], [2, found], Sampling(**sampling))


def log_odds(share):
    return math.log(share) - math.log(1 - share)


@pytest.mark.parametrize("temperature", [0.3, 1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_a_draw_close_to_the_cut_is_a_near_tie(engine, monkeypatch, temperature, seed):
    cut = temperature * log_odds(uniform(seed, "token", 1))
    for gap, verdict in ((BOUND / 2, "near_tie"), (BOUND * 2, "different")):
        compared = drawn_from(engine, monkeypatch, {3: cut + gap, 5: 0.0}, 3, 5, temperature=temperature, seed=seed)
        assert (compared.verdict, compared.position) == (verdict, 1)
        assert compared.gap == pytest.approx(gap, rel=1e-3)
        swapped = drawn_from(engine, monkeypatch, {3: cut - gap, 5: 0.0}, 3, 5, temperature=temperature, seed=seed)
        assert swapped.gap == pytest.approx(gap, rel=1e-3)


def test_an_impossible_token_is_no_draw(engine, monkeypatch):
    compared = drawn_from(engine, monkeypatch, {3: 0.0, 5: 0.0}, 3, 6, temperature=1)
    assert (compared.verdict, compared.gap) == ("different", math.inf)


@pytest.mark.parametrize(
    ("logits", "cuts"),
    [
        ({2: 0.0, 3: 1.0, 5: BOUND / 2}, {"top_k": 2}),
        ({2: 0.0, 3: 1.0, 5: BOUND / 2}, {"top_p": (1 + math.e) / (2 + math.e)}),
        ({2: 0.0, 3: 1.0, 5: 1.0}, {"min_p": math.exp(-1 - BOUND / 2)}),
    ],
)
def test_a_token_that_is_only_just_cut_off_may_have_been_drawn(engine, monkeypatch, logits, cuts):
    seed = next(seed for seed in range(100) if uniform(seed, "token", 1) < 0.1)
    for expected, found in ((2, 3), (3, 2)):
        near = drawn_from(engine, monkeypatch, logits, expected, found, temperature=1, seed=seed, **cuts)
        assert near.verdict == "near_tie"
        lower = logits | {2: -9.0}
        far = drawn_from(engine, monkeypatch, lower, expected, found, temperature=1, seed=seed, **cuts)
        assert far.verdict == "different"


def test_a_greedy_choice_is_judged_after_the_penalty(engine, monkeypatch):
    for penalty, verdict in ((1, "different"), (2, "near_tie")):
        compared = drawn_from(engine, monkeypatch, {2: 2.0, 5: 1.0}, 2, 5, repetition_penalty=penalty)
        assert compared.verdict == verdict


def test_a_temperature_close_to_0_is_fine(engine, monkeypatch):
    cuts = {"top_k": 2, "top_p": 0.5, "min_p": 0.5}
    compared = drawn_from(engine, monkeypatch, {2: 0.0, 3: 1.0, 5: 1.0}, 2, 3, temperature=1e-9, **cuts)
    assert compared.verdict == "different"
