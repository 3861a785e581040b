import pytest
import torch

from spec_trt.runtime.near_tie import NEAR_TIE_LOGITS, Comparison, compare_outputs
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
