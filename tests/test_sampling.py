"""Sampled output of every method on real graphs: plain sampling's with the same seed."""

import pytest

from spec_trt.builder.build import build_engine
from spec_trt.builder.config import BuildConfig
from spec_trt.runtime.drafters import METHODS
from spec_trt.runtime.engine import Engine
from spec_trt.runtime.generation import GenerationConfig
from spec_trt.runtime.near_tie import compare_outputs
from spec_trt.runtime.sampling import Sampling

PROMPTS = [[65], [70, 71, 72, 70, 71, 72, 70], [3 + token * token % 117 for token in range(100)]]
SAMPLINGS = [
    Sampling(temperature=0.05, seed=1),
    Sampling(temperature=1, top_k=20, top_p=0.9, min_p=0.01, repetition_penalty=1.2, seed=2),
    Sampling(repetition_penalty=1.1),
]
COUNT = 24


@pytest.fixture(scope="module")
def engine(medusa_bundle, tmp_path_factory):
    return built(medusa_bundle, tmp_path_factory)


@pytest.fixture(scope="module")
def eagle3_engine(eagle3_bundle, tmp_path_factory):
    return built(eagle3_bundle, tmp_path_factory)


def built(bundle, tmp_path_factory):
    directory = tmp_path_factory.mktemp("sampling") / "engine"
    build_engine(BuildConfig(bundle=bundle, out=directory))
    return Engine.load(directory, threads=1)


def generate(engine, prompt, method, sampling):
    config = GenerationConfig(method=method, sampling=sampling, max_new_tokens=COUNT, ignore_eos=True)
    return engine.generate(prompt, config)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_seed_gives_plain_samplings_output(engine, method, sampling):
    for prompt in PROMPTS:
        plain = generate(engine, prompt, "autoregressive", sampling)
        result = generate(engine, prompt, method, sampling)
        compared = compare_outputs(engine, prompt, plain.token_ids, result.token_ids, sampling)
        assert compared.verdict != "different", compared


def test_other_seeds_give_other_outputs(engine):
    outputs = [generate(engine, PROMPTS[1], "ngram", Sampling(temperature=1, seed=seed)).token_ids for seed in range(3)]
    assert len(set(map(tuple, outputs))) == 3


@pytest.mark.parametrize("name", ["engine", "eagle3_engine"])
def test_drawn_drafts_are_the_same_again(name, request):
    """EAGLE-3's draft knows a dozen ids, which are not the first ones."""
    loaded = request.getfixturevalue(name)
    sampling = Sampling(temperature=1.5, draft_sampling=True, seed=4)
    results = [generate(loaded, PROMPTS[2], "eagle", sampling) for _ in range(2)]
    assert results[0].token_ids == results[1].token_ids
    assert results[0].guarantee == "in law"
    assert results[0].stats.nodes > results[0].stats.passes
    assert len(results[0].token_ids) == COUNT


def test_typical_acceptance_says_that_it_is_not_lossless(engine):
    sampling = Sampling(temperature=1, acceptance="typical", typical_epsilon=1e-4, typical_alpha=0.1)
    result = generate(engine, PROMPTS[2], "medusa", sampling)
    assert result.guarantee == "not lossless"
    assert result.stats.accept_length > 1
