import math
from dataclasses import fields

import pytest

from spec_trt.errors import ConfigError
from spec_trt.runtime.sampling import Sampling


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": -0.1}, "temperature must be a number at least 0: found -0.1; give one in range"),
        ({"temperature": math.nan}, "temperature must be a number at least 0: found nan"),
        ({"temperature": math.inf}, "found inf"),
        ({"temperature": "hot"}, "found 'hot'"),
        ({"temperature": True}, "found True"),
        ({"top_k": -1}, "top_k must be an integer of at least 0: found -1"),
        ({"top_k": 2.5}, "found 2.5"),
        ({"top_p": 0}, "top_p must be a number above 0 and at most 1: found 0"),
        ({"top_p": 1.1}, "found 1.1"),
        ({"min_p": -0.1}, "min_p must be a number at least 0 and at most 1: found -0.1"),
        ({"repetition_penalty": 0}, "repetition_penalty must be a number above 0: found 0"),
        ({"seed": -1}, "seed must be an integer of at least 0 below 18446744073709551616: found -1"),
        ({"seed": 2**64}, "found 18446744073709551616"),
        ({"acceptance": "lucky"}, "acceptance must be one of lossless, typical: found 'lucky'"),
        ({"draft_sampling": 1}, "draft_sampling must be true or false: found 1"),
        ({"typical_epsilon": 0}, "typical_epsilon must be a number above 0 and at most 1: found 0"),
        ({"typical_alpha": 1}, "typical_alpha must be a number above 0 and below 1: found 1"),
    ],
)
def test_values_out_of_range_are_refused(given, message):
    with pytest.raises(ConfigError) as refused:
        Sampling(**given)
    assert message in str(refused.value)


def test_the_edges_are_in_range():
    Sampling(temperature=0, top_k=0, top_p=1, min_p=1, repetition_penalty=0.5, seed=2**64 - 1, typical_epsilon=1)


def test_greedy_is_the_default_and_draws_no_drafts():
    assert Sampling().is_greedy
    assert not Sampling(draft_sampling=True).draws_drafts
    assert Sampling(draft_sampling=True, temperature=1).draws_drafts


def test_every_field_explains_itself():
    assert all(field.metadata["help"].endswith(".") for field in fields(Sampling))
