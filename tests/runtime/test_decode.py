import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_trt.runtime.decode import decode
from spec_trt.runtime.drafters import METHODS, make_drafter
from spec_trt.runtime.stats import Stats
from spec_trt.runtime.target import Target
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
    stats = Stats()
    heads = fake_heads(model.next_token, vocab=8)
    drafter = make_drafter(method, {}, vocab=8, eos_ids=(), heads=heads)
    blocks = list(decode(prompt, target=target, drafter=drafter, max_new_tokens=count, stats=stats))
    assert [token for block in blocks for token in block] == model.greedy(prompt, count)
    assert (stats.emitted, stats.passes, stats.prompt_tokens) == (count, len(blocks), len(prompt))
    assert stats.accept_length == count / len(blocks)
    assert sum(stats.accepted_by_depth) == count - len(blocks)
    assert target.cache.lengths[0] == len(prompt) - 1 + count


def test_speculation_saves_passes_where_text_repeats():
    model = FakeTarget(vocab=8, order=2, period=4)
    target = Target(FakeSession(model.next_token), fake_facts(vocab=8))
    stats = Stats()
    drafter = make_drafter("ngram", {}, vocab=8, eos_ids=())
    list(decode([1, 2, 3, 4] * 5, target=target, drafter=drafter, max_new_tokens=60, stats=stats))
    assert stats.accept_length > 1.5
    assert stats.nodes > stats.passes
    assert all(stats.seconds[phase] > 0 for phase in ("prefill", "draft", "verify", "other"))
