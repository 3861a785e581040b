"""Whoever shares a batch, and whatever was in a place before: every output is the one alone."""

import threading
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_trt import names
from spec_trt.runtime.acceptance_rule import acceptance_rule
from spec_trt.runtime.allowance import UNLIMITED
from spec_trt.runtime.batch import Batch
from spec_trt.runtime.decode import decode_pass
from spec_trt.runtime.detokenizer import Detokenizer
from spec_trt.runtime.drafters import METHODS, make_drafter
from spec_trt.runtime.drafters.autoregressive import AutoregressiveDrafter
from spec_trt.runtime.live_sequence import LiveSequence
from spec_trt.runtime.sampler import Sampler
from spec_trt.runtime.sampling import Sampling
from spec_trt.runtime.stop import StopChecker
from spec_trt.runtime.target import Target
from spec_trt.runtime.worker import Worker
from tests.runtime.decoding import tokens
from tests.runtime.fake_heads import fake_heads
from tests.runtime.fake_session import FakeSession, fake_facts
from tests.runtime.fakes import FakeTarget
from tests.runtime.test_decode import plainly_sampled

VOCAB = 6
MODEL = FakeTarget(vocab=VOCAB, order=2, period=5)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request: which pass it comes before, and after how many of its own it is cancelled."""

    prompt: list[int]
    method: str = "autoregressive"
    count: int = 8
    seed: int | None = None
    arrival: int = 0
    patience: int | None = None

    @property
    def sampling(self) -> Sampling:
        if self.seed is None:
            return Sampling()
        return Sampling(temperature=1.0, top_p=0.9, repetition_penalty=1.3, seed=self.seed)

    def alone(self):
        """What plain decoding gives for it."""
        return plainly_sampled(MODEL, self.prompt, self.count, self.sampling)

    def sequence(self) -> LiveSequence:
        sampler = Sampler(self.sampling, self.prompt, vocab=VOCAB)
        return LiveSequence(
            self.prompt,
            draft=lambda heads: make_drafter(self.method, {}, vocab=VOCAB, eos_ids=(), heads=heads, sampler=sampler),
            head=METHODS[self.method].head,
            acceptance=acceptance_rule(sampler),
            stopper=StopChecker(detokenizer=Detokenizer(lambda _ids: ""), eos_ids=(), max_new_tokens=self.count),
        )


def make_batch(places: int, *, session=None, fits=lambda _places, _rows: True, **options) -> Batch:
    session = session or FakeSession(MODEL.next_token, vocab=VOCAB, logits=MODEL.logits)
    target = Target(session, fake_facts(vocab=VOCAB), prefill_chunk=5, cache_step=4)
    return Batch(
        target, lambda: fake_heads(MODEL.next_token, vocab=VOCAB, chunk=3), places=places, fits=fits, **options
    )


def serve(batch: Batch, asked: list[Asked]) -> list[LiveSequence]:
    """All of them, each from its arrival on, to the end."""
    sequences = [request.sequence() for request in asked]
    coming = sorted(range(len(asked)), key=lambda index: asked[index].arrival)
    step = 0
    while not all(sequence.ended for sequence in sequences):
        while coming and asked[coming[0]].arrival <= step and batch.admit(sequences[coming[0]]):
            coming.pop(0)
        for sequence, request in zip(sequences, asked, strict=True):
            if sequence.stats.passes == request.patience:
                sequence.cancel()
        batch.step()
        step += 1
        assert step < 2000
    return sequences


prompts = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=14)
requests = st.builds(
    Asked,
    prompt=st.one_of(prompts, prompts.map(lambda tail: [1, 2, 3, 4, 5, 0, 1, 2, *tail])),
    method=st.sampled_from(list(METHODS)),
    count=st.integers(1, 20),
    seed=st.one_of(st.none(), st.integers(0, 5)),
    arrival=st.integers(0, 30),
    patience=st.one_of(st.none(), st.none(), st.integers(0, 5)),
)


@given(asked=st.lists(requests, min_size=1, max_size=8), places=st.integers(1, 5))
@settings(deadline=None, max_examples=60)
def test_every_output_is_the_one_alone(asked, places):
    for request, sequence in zip(asked, serve(make_batch(places), asked), strict=True):
        assert sequence.feed.error is None
        expected, found = request.alone(), tokens(sequence)
        if sequence.feed.emissions[-1].finish_reason == "cancelled":
            assert found == expected[: len(found)]
        else:
            assert found == expected


@pytest.mark.parametrize("method", METHODS)
def test_a_prompt_takes_over_the_rows_of_an_earlier_one_that_began_alike(method):
    session = FakeSession(MODEL.next_token, vocab=VOCAB, logits=MODEL.logits)
    batch = make_batch(2, session=session)
    shared = [1, 2, 3, 4, 5, 0] * 4
    [first] = serve(batch, [Asked(prompt=[*shared, 1], method=method)])
    assert first.stats.reused_tokens == 0
    going_on = [*first.text, 3, 4]
    for prompt in ([*shared, 2, 2], going_on):  # by whole parts of 5 tokens, of what was read and not decoded
        [later] = serve(batch, [request := Asked(prompt=prompt, method=method)])
        assert tokens(later) == request.alone()
        assert later.stats.reused_tokens == 20


def test_without_reuse_nothing_is_taken_over():
    batch = make_batch(1, reuse_prefixes=False)
    request = Asked(prompt=[1, 2, 3, 4, 5, 0] * 3)
    for _ in range(2):
        [sequence] = serve(batch, [request])
        assert sequence.stats.reused_tokens == 0


def test_rows_of_another_methods_head_are_not_taken_for_ones_own():
    batch = make_batch(1)
    shared = [1, 2, 3, 4, 5, 0] * 3
    serve(batch, [Asked(prompt=[*shared, 1], method="eagle")])
    serve(batch, [Asked(prompt=[*shared, 2], method="ngram")])
    [sequence] = serve(batch, [request := Asked(prompt=[*shared, 3], method="eagle2")])
    assert sequence.stats.reused_tokens == 0
    assert tokens(sequence) == request.alone()


def test_running_sequences_go_on_while_a_long_prompt_is_read():
    batch = make_batch(2)
    running = Asked(prompt=[1], count=60).sequence()
    assert batch.admit(running)
    batch.step()
    long = Asked(prompt=[2, 3] * 20).sequence()
    assert batch.admit(long)
    third = Asked(prompt=[3]).sequence()
    assert not batch.admit(third)  # two prompts are not read at once
    parts = -(-39 // 5)
    for number in range(1, parts + 1):
        assert not long.is_read
        batch.step()
        assert running.stats.passes == 1 + number
    assert long.is_read


@pytest.fixture
def passes(monkeypatch):
    """Of every pass, how many sequences it has, and the rows of those that will join them."""
    found: list[tuple[int, list[int]]] = []

    def noted(sequences, target, budget, *, coming):
        found.append((len(sequences), coming))
        decode_pass(sequences, target, budget, coming=coming)

    monkeypatch.setattr("spec_trt.runtime.batch.decode_pass", noted)
    return found


def test_a_pass_knows_who_will_join_it(passes):
    batch = make_batch(4)
    asked = ((8, 60), (7, 9), (6, 60), (5, 60))
    long, brief, later, last = (Asked(prompt=[2] * rows, count=count).sequence() for rows, count in asked)
    endless = Asked(prompt=[3] * 90, count=60).sequence()  # 18 parts
    assert batch.admit(Asked(prompt=[1], count=90).sequence())
    batch.step()
    assert batch.admit(long)
    for waiting in ([], [later], [brief, later, last], [endless, later]):
        batch.step(waiting)
    assert passes == [
        (1, []),
        (1, [8]),  # it is being read
        (2, [6]),
        (2, [6]),  # who leaves at once doesn't count, and there is no third place
        (2, []),  # before it has been read much may have changed
    ]


def test_who_has_no_memory_is_not_reckoned_with(passes):
    batch = make_batch(8, fits=lambda places, rows: places * rows <= 100)
    assert batch.admit(Asked(prompt=[1], count=49).sequence())
    for waiting in (1, 2):
        batch.step([Asked(prompt=[2], count=40).sequence() for _ in range(waiting)])
    assert passes == [(1, [1]), (1, [1])]


def test_the_worker_says_who_waits():
    class Full:
        live = ()

        def __init__(self):
            self.everybody, self.waiting = threading.Event(), []

        def admit(self, _sequence):
            return not self.everybody.wait(timeout=10)

        def step(self, waiting):
            self.waiting = list(waiting)
            raise ValueError("enough")

        def fail(self, error):
            pass

    batch = Full()
    worker = Worker(batch, 3)  # type: ignore[arg-type]
    sequences = [Asked(prompt=[1]).sequence() for _ in range(3)]
    for sequence in sequences:
        worker.add(sequence)
    batch.everybody.set()
    worker._thread.join(timeout=10)
    assert batch.waiting == sequences
    assert all(str(sequence.feed.error) == "enough" for sequence in sequences)


def test_there_is_no_place_beyond_the_last_and_a_place_is_free_again():
    batch = make_batch(2)
    first, second, third = (Asked(prompt=[token], count=3).sequence() for token in (1, 2, 3))
    assert batch.admit(first)
    assert batch.admit(second)
    assert not batch.admit(third)
    while not (first.ended and second.ended):
        batch.step()
    assert batch.live == []
    assert batch.admit(third)


def test_memory_decides_how_many_run():
    batch = make_batch(8, fits=lambda places, rows: places * rows <= 60)
    asked = [Asked(prompt=[index % VOCAB] * 10, count=20, method="eagle") for index in range(5)]
    sequences = [request.sequence() for request in asked]
    assert [batch.admit(sequence) for sequence in sequences[:1]] == [True]
    while not sequences[0].is_read:
        batch.step()
    assert batch.admit(sequences[1])
    while not sequences[1].is_read:
        batch.step()
    assert not batch.admit(sequences[2])
    while not all(sequence.ended for sequence in sequences[:2]):
        batch.step()
    for request, sequence in zip(asked, serve(batch, asked), strict=True):
        assert tokens(sequence) == request.alone()


@pytest.mark.parametrize("method", ["eagle", "eagle2", "medusa"])
def test_a_head_that_rested_drafts_as_if_it_had_not(method):
    batch = make_batch(2)
    asked = [Asked(prompt=[1, 2, 3, token], count=60, method=method) for token in (4, 5)]
    sequences = [request.sequence() for request in asked]
    waited, step = 0, 0
    coming = list(sequences)
    while not all(sequence.ended for sequence in sequences):
        if coming and batch.admit(coming[0]):
            coming.pop(0)
        for sequence in batch.live:
            sequence.budget = "fixed" if step % 14 > 10 else 1  # the root alone
        batch.step()
        waited = max([waited, *(sequence.backlog for sequence in batch.live)])
        step += 1
    for request, sequence in zip(asked, sequences, strict=True):
        assert tokens(sequence) == request.alone()
        assert sequence.stats.accept_length > 1
        assert sequence.backlog == 0  # its place has let go of it
    assert (waited >= 11) == (method != "medusa")


class Raising(FakeSession):
    """Fails on the first pass of two sequences."""

    def bind(self, inputs, outputs):
        if len(inputs[names.INPUT_IDS]) == 2 and self.fail_on_run is None:
            self.fail_on_run = self.runs + 1
        return super().bind(inputs, outputs)


def test_a_pass_that_fails_ends_those_of_the_pass_and_nobody_else():
    batch = make_batch(3, session=Raising(MODEL.next_token, vocab=VOCAB, logits=MODEL.logits))
    first, second = (Asked(prompt=[token], count=9).sequence() for token in (1, 2))
    assert batch.admit(first)
    batch.step()
    assert batch.admit(second)
    batch.step()
    assert [str(sequence.feed.error) for sequence in (first, second)] == ["fault injected"] * 2
    assert batch.live == []
    asked = [Asked(prompt=[token, 3], count=9) for token in (1, 2)]
    for request, sequence in zip(asked, serve(batch, asked), strict=True):
        assert tokens(sequence) == request.alone()


class Faulty(AutoregressiveDrafter):
    """A drafter that fails at one of its moves."""

    def __init__(self, at):
        super().__init__()
        self.at = at

    def _move(self, name):
        if name == self.at:
            raise ValueError(f"fault in {name}")

    def start(self, prompt, out):
        super().start(prompt, out)
        self._move("start")

    def propose(self, max_depth, allowance=UNLIMITED):
        self._move("propose")
        return super().propose(max_depth, allowance)

    def observe(self, tree, out, path, extra):
        super().observe(tree, out, path, extra)
        self._move("observe")


@pytest.mark.parametrize("at", ["start", "propose", "observe"])
def test_a_drafter_that_fails_ends_its_own_sequence_alone(at):
    batch = make_batch(3)
    good = Asked(prompt=[1, 2, 3], count=9)
    sequences = [good.sequence(), good.sequence()]
    bad = Asked(prompt=[4, 5], count=9).sequence()
    bad._draft = lambda _heads: Faulty(at)
    for sequence in (sequences[0], bad, sequences[1]):
        while not batch.admit(sequence):
            batch.step()
    while batch.live:
        batch.step()
    assert str(bad.feed.error) == f"fault in {at}"
    for sequence in sequences:
        assert tokens(sequence) == good.alone()


def test_log_probs_are_the_targets_own_before_sampling():
    request = Asked(prompt=[1, 2, 3], method="ngram", count=12, seed=3)
    sequence = request.sequence()
    sequence._wants_log_probs = True
    batch = make_batch(1)
    assert batch.admit(sequence)
    while not sequence.ended:
        batch.step()
    found = [number for emission in sequence.feed.emissions for number in emission.log_probs]
    text, expected = list(request.prompt), []
    for token in request.alone():
        logits = MODEL.logits(text).astype(np.float64)
        expected.append(logits[token] - np.log(np.exp(logits).sum()))
        text.append(token)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_where_memory_ends_an_idle_place_knows_no_more_rows_than_it_has(monkeypatch):
    batch = make_batch(1)
    shared = [1, 2, 3, 4, 5, 0] * 4
    serve(batch, [Asked(prompt=[*shared, 1])])
    cache = batch._target.cache
    with monkeypatch.context() as patch:
        patch.setattr(cache, "fit", lambda *_: (_ for _ in ()).throw(MemoryError("injected")))
        refused = Asked(prompt=[5, 5, 5]).sequence()
        assert batch.admit(refused)
        assert isinstance(refused.feed.error, MemoryError)
    [slot] = batch._slots._slots
    assert len(slot.tokens) <= cache.lengths[0]
    serve(batch, [Asked(prompt=[4, 4] * 30)])
    [again] = serve(batch, [request := Asked(prompt=[*shared, 2])])
    assert tokens(again) == request.alone()
