import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_trt.runtime.acceptance_rule import acceptance_rule
from spec_trt.runtime.drafters import METHODS, make_drafter
from spec_trt.runtime.processors import distribution, inverse_cdf, penalize
from spec_trt.runtime.sampler import Sampler
from spec_trt.runtime.sampling import Sampling
from spec_trt.runtime.target import Target
from spec_trt.runtime.uniforms import uniform
from tests.runtime.decoding import blocks, decode, tokens
from tests.runtime.fake_heads import fake_heads
from tests.runtime.fake_session import FakeSession, fake_facts
from tests.runtime.fakes import FakeTarget


@pytest.mark.parametrize("method", METHODS)
@given(
    prompt=st.lists(st.integers(0, 7), min_size=1, max_size=40),
    count=st.integers(1, 60),
    period=st.integers(0, 9),
    order=st.integers(1, 3),
)
@settings(deadline=None, max_examples=25)
def test_output_equals_plain_greedy(method, prompt, count, period, order):
    model = FakeTarget(vocab=8, order=order, period=period)
    target = Target(FakeSession(model.next_token), fake_facts(vocab=8), prefill_chunk=7, cache_step=4)
    heads = fake_heads(model.next_token, vocab=8)
    drafter = make_drafter(method, {}, vocab=8, eos_ids=(), heads=heads)
    sequence = decode(prompt, target=target, drafter=drafter, count=count)
    stats, passes = sequence.stats, len(blocks(sequence))
    assert tokens(sequence) == model.greedy(prompt, count)
    assert (stats.emitted, stats.passes, stats.prompt_tokens) == (count, passes, len(prompt))
    assert stats.accept_length == count / passes
    assert sum(stats.accepted_by_depth) == count - passes
    assert len(stats.gaps) == passes - 1
    assert stats.time_to_first_token > 0
    assert target.cache.lengths[0] == len(prompt) - 1 + count


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.5]),
    top_k=st.sampled_from([0, 3]),
    top_p=st.sampled_from([1.0, 0.8]),
    min_p=st.sampled_from([0.0, 0.1]),
    repetition_penalty=st.sampled_from([1.0, 1.5, 0.8]),
    seed=st.integers(0, 2**64 - 1),
)


@pytest.mark.parametrize("method", METHODS)
@given(
    prompt=st.lists(st.integers(0, 7), min_size=1, max_size=20),
    count=st.integers(1, 30),
    period=st.integers(0, 9),
    sampling=samplings,
)
@settings(deadline=None, max_examples=20)
def test_sampled_output_equals_plain_sampling(method, prompt, count, period, sampling):
    model = FakeTarget(vocab=8, order=2, period=period)
    session = FakeSession(model.next_token, vocab=8, logits=model.logits)
    sampler = Sampler(sampling, prompt, vocab=8)
    heads = fake_heads(model.next_token, vocab=8)
    sequence = decode(
        prompt,
        target=Target(session, fake_facts(vocab=8), prefill_chunk=7, cache_step=4),
        drafter=make_drafter(method, {}, vocab=8, eos_ids=(), heads=heads, sampler=sampler),
        count=count,
        acceptance=acceptance_rule(sampler),
    )
    assert tokens(sequence) == plainly_sampled(model, prompt, count, sampling)


def plainly_sampled(model, prompt, count, sampling):
    """One token after another, the whole text looked at for each."""
    text = list(prompt)
    for position in range(count):
        logits = model.logits(text).astype(np.float64)
        penalize(logits, np.unique(text), sampling.repetition_penalty)
        if sampling.temperature == 0:
            text.append(int(logits.argmax()))
        else:
            text.append(inverse_cdf(distribution(logits, sampling), uniform(sampling.seed, "token", position)))
    return text[len(prompt) :]


@given(prompt=st.lists(st.integers(0, 7), min_size=1, max_size=20), count=st.integers(1, 30), seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=20)
def test_greedy_decoding_asks_for_no_logits_and_draws_no_drafts(prompt, count, seed):
    model = FakeTarget(vocab=8, order=2, period=3)
    outputs = []
    for sampling in (Sampling(), Sampling(draft_sampling=True, seed=seed)):
        sampler = Sampler(sampling, prompt, vocab=8)
        drafter = make_drafter(
            "eagle", {}, vocab=8, eos_ids=(), heads=fake_heads(model.next_token, vocab=8), sampler=sampler
        )
        acceptance = acceptance_rule(sampler)
        assert acceptance.needs == frozenset()
        target = Target(FakeSession(model.next_token), fake_facts(vocab=8))
        outputs.append(blocks(decode(prompt, target=target, drafter=drafter, count=count, acceptance=acceptance)))
    assert outputs[0] == outputs[1]


def test_speculation_saves_passes_where_text_repeats():
    model = FakeTarget(vocab=8, order=2, period=4)
    target = Target(FakeSession(model.next_token), fake_facts(vocab=8))
    drafter = make_drafter("ngram", {}, vocab=8, eos_ids=())
    stats = decode([1, 2, 3, 4] * 5, target=target, drafter=drafter, count=60).stats
    assert stats.accept_length > 1.5
    assert stats.nodes > stats.passes
    assert all(seconds > 0 for seconds in stats.seconds.values())
