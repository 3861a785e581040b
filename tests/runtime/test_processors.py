import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_trt.errors import BackendError
from spec_trt.runtime.processors import distribution, inverse_cdf, penalize
from spec_trt.runtime.sampling import Sampling
from tests.runtime.law import reference_probs

samplings = st.builds(
    Sampling,
    temperature=st.floats(0.05, 3),
    top_k=st.integers(0, 12),
    top_p=st.one_of(st.just(1.0), st.floats(0.05, 0.99)),
    min_p=st.one_of(st.just(0.0), st.floats(0.01, 0.9)),
)
seeds = st.integers(0, 2**32 - 1)


def random_logits(seed, vocab=10):
    return 3 * np.random.default_rng(seed).standard_normal(vocab).astype(np.float32)


@given(samplings, seeds)
@settings(deadline=None)
def test_the_distribution_is_that_of_transformers(sampling, seed):
    logits = random_logits(seed)
    found = distribution(logits.astype(np.float64), sampling)
    np.testing.assert_allclose(found, reference_probs(logits, [], sampling), atol=1e-12)


@pytest.mark.parametrize("spread", [0, 0.5, 1, 3, 9])
@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999])
@pytest.mark.parametrize("top_k", [0, 40])
def test_a_large_vocabulary_is_cut_like_a_small_one(spread, top_p, top_k):
    logits = spread * np.random.default_rng(0).standard_normal(9000).astype(np.float32)
    sampling = Sampling(temperature=1, top_p=top_p, top_k=top_k)
    found = distribution(logits.astype(np.float64), sampling)
    if spread:
        assert found == pytest.approx(reference_probs(logits, [], sampling).numpy(), abs=1e-12)
    else:
        assert np.flatnonzero(found).tolist() == list(range(int(np.ceil(top_p * 9000))))


@given(seeds, st.floats(0.2, 3), st.lists(st.integers(0, 9)))
@settings(deadline=None)
def test_the_penalty_is_that_of_transformers(seed, penalty, text):
    logits = random_logits(seed)
    scores = logits.astype(np.float64)
    penalize(scores, np.unique(np.array(text, dtype=np.int64)), penalty)
    found = distribution(scores, Sampling(temperature=1))
    np.testing.assert_allclose(
        found, reference_probs(logits, text or [0], Sampling(temperature=1, repetition_penalty=penalty if text else 1))
    )


@pytest.mark.parametrize("temperature", [1e-300, 5e-324, 1e-3])
def test_a_tiny_temperature_is_nearly_greedy(temperature):
    probs = distribution(np.array([1.0, 3.0, 2.0]), Sampling(temperature=temperature, top_k=2, top_p=0.5, min_p=0.5))
    assert probs.tolist() == [0, 1, 0]


def test_tokens_as_likely_as_the_last_of_top_k_stay():
    logits = np.array([2.0, 1.0, 1.0, 0.0])
    assert (distribution(logits, Sampling(temperature=1, top_k=2)) > 0).tolist() == [True, True, True, False]
    assert (distribution(logits, Sampling(temperature=1, top_k=9)) > 0).all()


def test_top_p_takes_the_lower_ids_among_equals():
    probs = distribution(np.zeros(5), Sampling(temperature=1, top_p=0.5))
    np.testing.assert_allclose(probs, [1 / 3, 1 / 3, 1 / 3, 0, 0])


def test_impossible_tokens_are_fine_and_other_logits_are_refused():
    np.testing.assert_allclose(distribution(np.array([0.0, -np.inf, 0.0]), Sampling(temperature=1)), [0.5, 0, 0.5])
    for broken in (np.nan, np.inf):
        with pytest.raises(BackendError, match="logits must be finite numbers"):
            distribution(np.array([0.0, broken]), Sampling(temperature=1))
    with pytest.raises(BackendError, match="logits must be finite numbers"):
        distribution(np.full(3, -np.inf), Sampling(temperature=1))


@given(seeds, st.integers(1, 1200), st.floats(0, 1, exclude_max=True))
@settings(deadline=None)
def test_the_inverse_is_where_the_running_sum_passes(seed, vocab, uniform):
    random = np.random.default_rng(seed)
    probs = np.where(random.random(vocab) < 0.5, 0.0, random.random(vocab))
    probs[random.integers(vocab)] = 0.5
    token = inverse_cdf(probs, uniform)
    assert probs[token] > 0
    wanted, rounding = uniform * probs.sum(), 1e-12 * probs.sum()
    assert probs[:token].sum() <= wanted + rounding
    assert wanted - rounding <= probs[: token + 1].sum()


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
@pytest.mark.parametrize("place", [0, 255, 256, 511, 700])
def test_a_certain_token_is_always_drawn(uniform, place):
    for probability in (1.0, 1e-300):
        probs = np.zeros(701)
        probs[place] = probability
        assert inverse_cdf(probs, uniform) == place


def test_the_last_token_of_a_rounded_sum_is_drawn_at_the_end():
    probs = np.append(np.full(1000, 0.1), np.zeros(300))
    assert inverse_cdf(probs, 1 - 2**-53) == 999
