"""Many requests at once, through the public surface: whoever asks, from whichever thread or event loop."""

import asyncio
import contextlib
import gc
import multiprocessing
import os
import pickle
import threading
import time
import tracemalloc
import weakref

import numpy as np
import pytest
import torch

from spec_trt.errors import BackendError, BusyError, ClosedError, ConfigError, PromptError
from spec_trt.runtime import Engine, GenerationConfig, Sampling, Scheduler, SchedulerConfig, cache_memory, kv_cache
from spec_trt.runtime.drafters import METHODS
from spec_trt.runtime.engine_size import target_row_bytes
from spec_trt.runtime.stop import StopChecker
from tests.runtime.fake_engine import fake_engine, save_byte_tokenizer
from tests.runtime.fake_session import FakeSession
from tests.runtime.fakes import FakeTarget

MODEL = FakeTarget(vocab=8, order=2, period=5)


class Gate(FakeSession):
    """A session whose passes wait until they are let through."""

    def __init__(self):
        super().__init__(MODEL.next_token, vocab=MODEL.vocab)
        self.open = threading.Event()
        self.open.set()

    def bind(self, inputs, outputs):
        binding = super().bind(inputs, outputs)
        return _Gated(binding, self.open)


class _Gated:
    def __init__(self, binding, gate):
        self._binding, self._gate = binding, gate

    def run(self):
        assert self._gate.wait(20)
        self._binding.run()


@pytest.fixture
def gate():
    return Gate()


@pytest.fixture
def engine(tmp_path, gate):
    with fake_engine(tmp_path, MODEL, session=gate) as engine:
        yield engine
        gate.open.set()


def config(count=20, **options):
    return GenerationConfig(max_new_tokens=count, **options)


def in_flight(engine):
    scheduler = engine._scheduler()
    deadline = time.monotonic() + 20
    while scheduler.in_flight and time.monotonic() < deadline:
        time.sleep(0.001)
    return scheduler.in_flight


def products_memory():
    """Bytes that the product's own lines hold: the stand-ins note down what they see."""
    gc.collect()
    lines = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/runtime/*")])
    return sum(line.size for line in lines.statistics("filename") if "tests" not in line.traceback[0].filename)


def test_a_list_of_prompts_gives_a_list_of_results(engine):
    prompts = [[1 + index % 7, 2, index % 5] for index in range(40)]
    with Scheduler(engine, SchedulerConfig(slots=3, queue=4)):
        results = engine.generate(prompts, config(12))
    assert [result.token_ids for result in results] == [MODEL.greedy(prompt, 12) for prompt in prompts]
    assert engine.generate([[1, 2]], config(5))[0].token_ids == MODEL.greedy([1, 2], 5)


def test_requests_of_all_methods_and_lengths_at_once_from_many_threads(engine):
    found = {}

    def ask(index):
        prompt = [index % 8, 3, *range(index % 7)]
        method = list(METHODS)[index % len(METHODS)]
        result = engine.generate(prompt, config(5 + index, method=method))
        found[index] = result.token_ids == MODEL.greedy(prompt, 5 + index) and result.stats.time_to_first_token > 0

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(28)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == dict.fromkeys(range(28), True)


def test_a_full_queue_refuses_and_takes_more_when_there_is_room(engine, gate):
    with Scheduler(engine, SchedulerConfig(slots=2, queue=1)) as scheduler:
        gate.open.clear()
        running = [scheduler.submit([1, 2], config(5)) for _ in range(3)]
        with pytest.raises(BusyError, match="3 requests are in flight, no more are taken: try again later"):
            scheduler.submit([1, 2])
        assert scheduler.in_flight == 3
        gate.open.set()
        assert [generation.result().token_ids for generation in running] == [MODEL.greedy([1, 2], 5)] * 3
        assert scheduler.submit([3], config(4)).result().token_ids == MODEL.greedy([3], 4)


def test_a_timeout_ends_with_what_there_is(engine, gate):
    gate.open.clear()
    running = engine.stream([1, 2], config(400), timeout=0.05)
    queued = [engine.stream([1, 2], config(400), timeout=0.05) for _ in range(20)]
    time.sleep(0.1)
    gate.open.set()
    for generation in [running, *queued]:
        result = generation.result()
        assert result.finish_reason == "timeout"
        assert result.token_ids == MODEL.greedy([1, 2], len(result.token_ids))
    with pytest.raises(ConfigError, match="a timeout must be more than 0 seconds: found 0"):
        engine.stream([1], timeout=0)


def test_waiting_for_a_result_has_a_limit_of_its_own(engine, gate):
    gate.open.clear()
    generation = engine.stream([1, 2], config(5))
    with pytest.raises(TimeoutError, match=r"not ended within 0\.01 s"):
        generation.result(timeout=0.01)
    gate.open.set()
    assert generation.result(timeout=20).token_ids == MODEL.greedy([1, 2], 5)


def test_a_thousand_cancelled_requests_leave_nothing(engine):
    with Scheduler(engine, SchedulerConfig(slots=4, queue=50)) as scheduler:

        def ask_and_leave(count):
            for index in range(count):
                try:
                    generation = scheduler.submit([index % 8, 1, 2], config(300, method="eagle"))
                except BusyError:
                    time.sleep(0.002)
                    continue
                if index % 2:
                    next(iter(generation))
                generation.close()

        ask_and_leave(100)
        assert in_flight(engine) == 0
        tracemalloc.start()
        before = products_memory()
        ask_and_leave(1000)
        assert scheduler.submit([1, 2], config(9)).result().token_ids == MODEL.greedy([1, 2], 9)
        assert in_flight(engine) == 0
        grown = products_memory() - before
        tracemalloc.stop()
        assert grown < 60_000


def test_a_session_that_raises_fails_its_requests_and_serves_the_next(tmp_path):
    session = FakeSession(MODEL.next_token, vocab=MODEL.vocab, fail_on_run=4)
    with fake_engine(tmp_path, MODEL, session=session) as engine:
        failing = [engine.stream([index, 1], config(30)) for index in range(3)]
        errors = 0
        for index, generation in enumerate(failing):
            with contextlib.suppress(BackendError):
                errors += 1
                assert generation.result().token_ids == MODEL.greedy([index, 1], 30)
                errors -= 1
        assert errors > 0
        assert engine.generate([5, 6], config(9)).token_ids == MODEL.greedy([5, 6], 9)


def test_a_forgotten_stream_is_cancelled(engine):
    scheduler = Scheduler(engine)
    scheduler.submit([1, 2], config(500))
    for _ in scheduler.submit([1, 2], config(500)):
        break
    gc.collect()
    assert in_flight(engine) == 0


def test_a_consumer_that_stops_reading_blocks_nobody(engine):
    slow = iter(engine.stream([7, 7], config(60)))
    first = next(slow)
    assert engine.generate([1, 2], config(30)).token_ids == MODEL.greedy([1, 2], 30)
    rest = [token for emission in slow for token in emission.token_ids]
    assert [*first.token_ids, *rest] == MODEL.greedy([7, 7], 60)


def test_event_loops(engine):
    async def listen(prompt):
        return [token async for emission in engine.astream(prompt, config(15)) for token in emission.token_ids]

    async def main():
        results = await asyncio.gather(
            *(listen([index, 2]) for index in range(6)),
            *(engine.agenerate([index, 3], config(9)) for index in range(6)),
        )
        assert results[:6] == [MODEL.greedy([index, 2], 15) for index in range(6)]
        assert [result.token_ids for result in results[6:]] == [MODEL.greedy([index, 3], 9) for index in range(6)]

    asyncio.run(main())


def test_a_cancelled_task_and_a_left_stream_free_their_slots(engine, gate):
    async def main():
        gate.open.clear()
        task = asyncio.create_task(engine.agenerate([1, 2], config(500)))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.open.set()
        stream = engine.astream([1, 2], config(500))
        async for _ in stream:
            break
        await stream.aclose()

    asyncio.run(main())
    assert in_flight(engine) == 0


def test_a_loop_that_closes_leaves_the_engine_to_others(engine, gate):
    loop = asyncio.new_event_loop()

    async def begin():
        stream = engine.astream([1, 2], config(300))
        return stream, await anext(stream)

    stream, _ = loop.run_until_complete(begin())
    gate.open.clear()
    waiting = loop.create_task(anext(stream))
    loop.run_until_complete(asyncio.sleep(0.01))
    waiting.cancel()
    loop.close()
    gate.open.set()
    assert engine.generate([3, 4], config(9)).token_ids == MODEL.greedy([3, 4], 9)
    del stream, waiting
    gc.collect()
    assert in_flight(engine) == 0


def test_closing_from_another_thread_ends_everybody_with_an_error(tmp_path, gate):
    engine = fake_engine(tmp_path, MODEL, session=gate)
    gate.open.clear()
    generations = [engine.stream([1, 2], config(500)) for _ in range(20)]
    closer = threading.Thread(target=engine.close)
    closer.start()
    time.sleep(0.05)
    gate.open.set()
    closer.join(20)
    for generation in generations:
        with pytest.raises(ClosedError, match="closed before the generation's end"):
            generation.result(timeout=20)
    for use in (
        lambda: engine.generate([1]),
        lambda: engine.next_logits([1]),
        lambda: Scheduler(engine),
        engine.new_target,
        engine.new_heads,
        lambda: engine.encode("text"),
        lambda: engine.methods,
    ):
        with pytest.raises(ClosedError, match="the engine is closed: load it again"):
            use()
    engine.close()


def test_closing_gives_the_memory_back(tmp_path):
    engine = fake_engine(tmp_path, MODEL)
    engine.generate([1, 2], config(5))
    target = weakref.ref(engine._scheduler()._worker._batch._target)
    assert target() is not None
    engine.close()
    gc.collect()
    assert target() is None


def test_a_forgotten_engine_ends_its_thread(tmp_path):
    engine = fake_engine(tmp_path, MODEL)
    engine.generate([1, 2], config(5))
    thread = engine._scheduler()._worker._thread
    assert thread.is_alive()
    del engine
    gc.collect()
    thread.join(20)
    assert not thread.is_alive()


def test_one_scheduler_at_a_time(engine, gate):
    with Scheduler(engine) as scheduler:
        with pytest.raises(ConfigError, match="has an open scheduler: use that one, or close it first"):
            Scheduler(engine)
        assert engine.generate([1, 2], config(3)).token_ids == MODEL.greedy([1, 2], 3)
        assert engine._scheduler() is scheduler
    with pytest.raises(ClosedError):
        scheduler.submit([1])
    assert engine.generate([1, 2], config(3)).token_ids == MODEL.greedy([1, 2], 3)
    gate.open.clear()
    busy = engine.stream([1, 2], config(50))
    with pytest.raises(ConfigError, match="has an open scheduler"):
        Scheduler(engine)
    gate.open.set()
    busy.result()
    assert in_flight(engine) == 0
    with Scheduler(engine, SchedulerConfig(slots=1)):  # an idle one of the engine's own makes way
        assert engine.generate([1, 2], config(3)).token_ids == MODEL.greedy([1, 2], 3)


def test_the_caches_limit_holds_and_what_can_never_fit_is_refused(engine):
    row = target_row_bytes(engine.manifest)
    with Scheduler(engine, SchedulerConfig(slots=8, cache_bytes=row * 64 * 3)) as scheduler:
        targets = [scheduler._worker._batch._target]
        with pytest.raises(PromptError, match=r"may grow to 203 tokens, more than fit the cache's limit of \d+ bytes"):
            scheduler.submit([1, 2, 3], config(200))
        generations = [scheduler.submit([index % 8, 2, 3], config(50)) for index in range(12)]
        for index, generation in enumerate(generations):
            assert generation.result().token_ids == MODEL.greedy([index % 8, 2, 3], 50)
            [target] = targets
            assert target.cache._storage.nbytes <= row * 64 * 3
            assert 1 <= target.cache.batch <= 3


@pytest.mark.parametrize(
    "bad", [{"slots": 0}, {"slots": 1.5}, {"queue": -1}, {"queue": None}, {"cache_bytes": 0}, {"cache_bytes": 1.5e9}]
)
def test_settings_that_make_no_sense_are_refused(bad):
    with pytest.raises(ConfigError, match="must be an integer of at least"):
        SchedulerConfig(**bad)


def test_a_limit_that_holds_next_to_nothing_is_refused(engine):
    with pytest.raises(ConfigError, match=r"cache_bytes must be some more than the \d+ bytes of 64 tokens, found 10"):
        Scheduler(engine, SchedulerConfig(cache_bytes=10))
    assert engine.generate([1, 2], config(3)).token_ids == MODEL.greedy([1, 2], 3)


def test_who_has_a_result_has_freed_a_place(engine):
    for _ in range(20):
        with Scheduler(engine, SchedulerConfig(slots=2, queue=0)) as scheduler:
            for _ in range(3):
                generations = [scheduler.submit([1, 2], config(3)) for _ in range(2)]
                assert [generation.result().token_ids for generation in generations] == [MODEL.greedy([1, 2], 3)] * 2


def test_a_fault_in_what_is_handed_out_ends_its_own_request(engine, monkeypatch):
    push = StopChecker.push

    def faulty(self, block):
        if self.remaining < 100:
            raise ValueError("fault injected")
        return push(self, block)

    monkeypatch.setattr(StopChecker, "push", faulty)
    long, short = engine.stream([1, 2], config(300)), engine.stream([1, 3], config(50))
    for _ in range(2):
        with pytest.raises(BackendError, match=r"the generation failed \(ValueError: fault injected\)") as raised:
            short.result()
        assert len(raised.traceback) < 6  # everybody who asks gets an error of their own
    first = next(iter(long))
    assert first.token_ids == MODEL.greedy([1, 2], len(first.token_ids))
    assert not isinstance(long._feed.error, UnboundLocalError)


def test_prompts_are_texts_or_integers(engine):
    expected = MODEL.greedy([1, 2], 3)
    for prompt in ([1, 2], (1, 2), range(1, 3), np.array([1, 2]), torch.tensor([1, 2]), [np.int64(1), 2]):
        assert engine.generate(prompt, config(3)).token_ids == expected
    for wrong, words in (
        ([1.5], "must be integers, found 1.5"),
        ([True], "must be integers, found True"),
        (torch.tensor([[1, 2]]), r"must be integers, found \[1, 2\]"),
        (b"ab", "must be a text or token ids, found bytes"),
        (5, "must be a text or token ids, found int"),
        (None, "must be a text or token ids, found NoneType"),
    ):
        with pytest.raises(PromptError, match=words):
            engine.generate(wrong)


@pytest.mark.parametrize(
    "bad",
    [
        {"max_new_tokens": 2.5},
        {"max_new_tokens": "5"},
        {"sampling": {}},
        {"budget": True},
        {"stop": [5]},
        {"stop": None},
        {"options": None},
        {"ignore_eos": "no"},
        {"log_probs": "x"},
    ],
)
def test_configurations_of_other_types_are_refused(engine, bad):
    with pytest.raises(ConfigError, match="must be"):
        engine.generate([1], GenerationConfig(**bad))
    for wrong in ({"timeout": "x"}, {"timeout": True}, {"config": {"max_new_tokens": 3}}):
        with pytest.raises(ConfigError, match="must be"):
            engine.stream([1], **wrong)


def test_a_seed_gives_the_same_output_alone_and_among_others(tmp_path):
    with fake_engine(tmp_path, MODEL, logits=MODEL.logits) as engine:

        def asked(seed, method):
            return config(25, method=method, sampling=Sampling(temperature=1.0, top_p=0.95, seed=seed))

        alone = {seed: engine.generate([1, 2, 3], asked(seed, "autoregressive")).token_ids for seed in range(6)}
        together = [(seed, engine.stream([1, 2, 3], asked(seed, method))) for seed in range(6) for method in METHODS]
        for seed, generation in together:
            assert generation.result().token_ids == alone[seed]
        assert len({tuple(tokens) for tokens in alone.values()}) > 1


def test_log_probs_come_with_every_piece(engine):
    generation = engine.stream([1, 2], config(12, log_probs=True))
    pieces = list(generation)
    assert all(len(piece.log_probs) == len(piece.token_ids) for piece in pieces)
    assert generation.result().log_probs == [number for piece in pieces for number in piece.log_probs]
    assert engine.generate([1, 2], config(3)).log_probs is None


def test_engines_are_not_pickled(engine):
    for thing in (engine, Scheduler(engine), engine.stream([1, 2], config(2))):
        with pytest.raises(ConfigError, match="can't be pickled"):
            pickle.dumps(thing)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("asked_before", [True, False])
def test_a_forked_process_is_told_to_load_its_own(engine, asked_before):
    if asked_before:
        engine.generate([1, 2], config(3))
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)

    def ask():
        return (
            engine.generate([1, 2], config(3)) if asked_before else Scheduler(engine).submit([1, 2], config(3)).result()
        )

    def use():
        with engine:
            try:
                ask()
            except ConfigError as error:
                sending.send(str(error))

    process = context.Process(target=use)
    process.start()
    assert receiving.poll(20)
    assert "was loaded before a fork" in receiving.recv()
    process.join(20)
    assert process.exitcode == 0


def test_the_interpreter_ends_in_the_middle_of_a_generation(tmp_path):
    import subprocess
    import sys

    program = f"""
from pathlib import Path
from spec_trt.runtime import GenerationConfig
from spec_trt.runtime.stop import StopChecker
from tests.runtime.fake_engine import fake_engine, save_byte_tokenizer
from tests.runtime.test_scheduler import MODEL
engine = fake_engine(Path({str(tmp_path)!r}), MODEL)
generation = engine.stream([1, 2], GenerationConfig(max_new_tokens=500))
next(iter(generation))
print("leaving")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "leaving\n", "")


def test_the_public_names_are_those_of_the_runtime():
    import spec_trt.runtime as runtime

    assert {name: getattr(runtime, name).__name__ for name in runtime.__all__} == {
        name: name for name in runtime.__all__
    }
    assert Engine is runtime.Engine
    with pytest.raises(AttributeError, match="has no attribute 'Motor'"):
        runtime.Motor  # noqa: B018 - the look-up is what fails


def test_schedulers_open_and_close_while_others_ask(engine):
    faults: list[BaseException] = []
    stop = threading.Event()

    def ask():
        while not stop.is_set():
            try:
                assert engine.generate([1, 2], config(3)).token_ids == MODEL.greedy([1, 2], 3)
            except ClosedError as error:  # those in flight with a scheduler that closes
                if "closed before the generation's end" not in str(error):
                    faults.append(error)
            except BaseException as error:
                faults.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(40):
        with contextlib.suppress(ConfigError), Scheduler(engine, SchedulerConfig(slots=2)):
            time.sleep(0.002)
    stop.set()
    for thread in threads:
        thread.join(20)
    assert faults == []


def test_many_may_close_at_once(engine):
    generations = [engine.stream([1, 2], config(300)) for _ in range(4)]
    threads = [threading.Thread(target=engine.close) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    for generation in generations:
        with contextlib.suppress(ClosedError):
            generation.result(timeout=20)


def test_a_stream_keeps_its_engine(tmp_path):
    tokens = [token for piece in fake_engine(tmp_path, MODEL).stream([1, 2], config(50)) for token in piece.token_ids]
    assert tokens == MODEL.greedy([1, 2], 50)


def test_more_prompts_than_the_queue_takes_wait_for_room(engine):
    with Scheduler(engine, SchedulerConfig(slots=1, queue=0)) as scheduler:
        others = [scheduler.submit([3, 4], config(60))]
        results = engine.generate([[1, 2], [1, 3], [1, 4]], config(5))
        assert [result.token_ids for result in results] == [MODEL.greedy([1, token], 5) for token in (2, 3, 4)]
        assert others[0].result().token_ids == MODEL.greedy([3, 4], 60)


def test_what_was_held_back_comes_with_the_end(tmp_path):
    save_byte_tokenizer(tmp_path)
    model = FakeTarget(vocab=128, order=2, period=3)
    with fake_engine(tmp_path, model) as engine:
        text = bytes(model.greedy([65, 66], 300)).decode()
        with engine.stream([65, 66], config(300, stop=[text + "X"])) as generation:
            while not generation.stats.passes:
                time.sleep(0.001)
        result = generation.result()
        assert result.finish_reason in {"cancelled", "length"}
        assert result.token_ids == model.greedy([65, 66], len(result.token_ids))
        assert len(result.text) == len(result.token_ids) == result.stats.emitted > 0


def test_a_failed_growth_leaves_the_engine_whole(engine, monkeypatch):
    full = True
    real = cache_memory.zeros

    def zeros(size, like):
        if full:
            raise MemoryError("injected")
        return real(size, like)

    assert engine.generate([1, 2], config(3)).token_ids == MODEL.greedy([1, 2], 3)
    monkeypatch.setattr(kv_cache, "zeros", zeros)
    failing = [engine.stream([1, token], config(200)) for token in range(8)]
    for generation in failing:
        with contextlib.suppress(BackendError):
            generation.result()
    full = False
    prompts = [[1, token] for token in range(8)]
    results = engine.generate(prompts, config(40))
    assert [result.token_ids for result in results] == [MODEL.greedy(prompt, 40) for prompt in prompts]
