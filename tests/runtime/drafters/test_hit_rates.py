import math

import pytest

from spec_trt.runtime.drafters.hit_rates import HitRates


def chances(rates: HitRates, *kinds: str) -> list[float]:
    return [math.exp(score) for score in rates.scores(kinds)]


def test_a_chains_chances_are_its_guesses_own_multiplied():
    rates = HitRates({"a": 0.5, "b": 0.2}, 0.1)
    assert chances(rates, "a", "b", "c") == pytest.approx([0.5, 0.1, 0.01])
    assert chances(rates) == []


def test_what_is_seen_soon_outweighs_what_was_believed():
    rates = HitRates({"a": 0.5}, 0.1)
    for _ in range(40):
        rates.learn(["a", "a", "c"], 1)  # the second was wrong, so nothing is known of the third
    assert chances(rates, "a") == pytest.approx([0.5], abs=0.01)
    assert chances(rates, "c") == pytest.approx([0.1])
    for _ in range(40):
        rates.learn(["c"], 1)
    assert chances(rates, "c")[0] > 0.85
    rates.learn([], 0)
    assert rates.scores(["a"])[0] < 0


def test_a_kind_that_is_never_right_gets_its_chance_again():
    rates = HitRates({}, 0.1)
    for _ in range(1000):
        rates.learn(["a"], 0)
    assert 0 < chances(rates, "a")[0] < 0.01
    for _ in range(200):
        rates.learn([], 0)
    assert chances(rates, "a") == pytest.approx([0.1], abs=0.05)  # what was seen fades
