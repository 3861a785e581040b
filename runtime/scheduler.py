"""Many requests at once: a queue, and a thread that decodes whoever there is room for."""

import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from spec_trt.errors import BusyError, ClosedError, ConfigError, PromptError
from spec_trt.runtime.batch import Batch
from spec_trt.runtime.generation import Generation, GenerationConfig
from spec_trt.runtime.live_sequence import LiveSequence
from spec_trt.runtime.target import Target

if TYPE_CHECKING:
    from spec_trt.runtime.engine import Engine, Prompt

__all__ = ["Scheduler", "SchedulerConfig"]

Fits = Callable[[int, int], bool]

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """How many requests are served at once.

    Attributes:
        slots: Sequences decoded together at the most; a TensorRT engine's own --max-batch may allow fewer.
        queue: Requests that may wait for a slot; more are refused.
        cache_bytes: Memory that the KV caches may take, a draft head's included; any when None. A request waits
            until its rows have room.
        reuse_prefixes: Whether a prompt that begins as an earlier text did takes over its rows in the cache.
    """

    slots: int = 16
    queue: int = 256
    cache_bytes: int | None = None
    reuse_prefixes: bool = True

    def __post_init__(self) -> None:
        if self.slots < 1 or self.queue < 0 or (self.cache_bytes is not None and self.cache_bytes < 1):
            raise ConfigError(
                "a scheduler needs slots >= 1, queue >= 0 and cache_bytes >= 1 or None, found "
                f"{self.slots}, {self.queue} and {self.cache_bytes}"
            )


class Scheduler:
    """Serves an engine's requests together, each as if it were alone.

    An engine has one at a time, and makes itself one when it is first asked for something: open one to say how many
    requests, how much memory and how long a queue. Its methods are for any thread.

    Args:
        engine: The engine.
        config: How many requests are served at once.

    Raises:
        ConfigError: The engine has an open scheduler, or the cache's limit is too small.
        ClosedError: The engine is closed.
    """

    def __init__(self, engine: "Engine", config: SchedulerConfig | None = None) -> None:
        self.config = config or SchedulerConfig()
        self._engine, self._process = engine, os.getpid()
        engine.claim(self)
        try:
            room = _Room.of(engine, self.config)
            self._fits: Fits | None = room.fits
            self._worker = _Worker(room.batch(engine, self.config), room.places + self.config.queue)
        except BaseException:
            engine.release(self)
            raise
        self._stop = weakref.finalize(self, self._worker.close)  # also at the interpreter's exit

    def submit(
        self, prompt: "Prompt", config: GenerationConfig | None = None, *, timeout: float | None = None
    ) -> Generation:
        """Queue a request.

        Args:
            prompt: A text, or token ids.
            config: How to generate; plain greedy decoding by default.
            timeout: Seconds from now on after which it ends with what it has, finish reason `timeout`.

        Raises:
            PromptError: The prompt is empty, does not fit, or has an id outside the vocabulary.
            ConfigError: The method or an option is unknown, or the method does not go with the sampling.
            BusyError: The queue is full.
            ClosedError: The scheduler is closed.
        """
        self._check_process()
        config = config or GenerationConfig()
        sequence = self._engine.prepare(prompt, config, timeout=timeout)
        return self.run(sequence, log_probs=config.log_probs)

    def run(self, sequence: LiveSequence, *, log_probs: bool = False) -> Generation:
        """Queue a sequence that is made already; see `submit`."""
        if self._fits is not None and not self._fits(1, sequence.longest):
            raise PromptError(
                f"the request may grow to {sequence.longest} tokens, more than fit the cache's limit of "
                f"{self.config.cache_bytes} bytes: shorten the prompt, ask for fewer tokens, or raise cache_bytes"
            )
        self._worker.add(sequence)
        return Generation(sequence, log_probs=log_probs)

    @property
    def in_flight(self) -> int:
        """Requests that have come and not ended, those in the queue included."""
        return self._worker.in_flight

    @property
    def closed(self) -> bool:
        """Whether it takes no more requests."""
        return self._worker.closed

    def close(self) -> None:
        """End all requests with `ClosedError`, and give the caches back. It may be closed again."""
        self._check_process()
        self._stop()
        self._fits = None
        self._engine.release(self)

    def __enter__(self) -> "Scheduler":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> str:
        raise ConfigError("a scheduler can't be pickled: open one in the process that is to use it")

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise ConfigError(
                "the engine was loaded before a fork, its threads are not in this process: load it after the fork"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Room:
    """What there is memory for.

    Attributes:
        target: The model, with its cache.
        places: Sequences at once.
        fits: Whether a number of sequences may have a number of rows each.
    """

    target: Target
    places: int
    fits: Fits

    @classmethod
    def of(cls, engine: "Engine", config: SchedulerConfig) -> "_Room":
        """An engine of fixed shapes has all of its cache from the start; another one's grows."""
        places = min(config.slots, engine.max_batch)
        if not engine.has_fixed_cache:
            share = None if config.cache_bytes is None else _targets_share(engine, config.cache_bytes)
            target = engine.new_target(cache_bytes=share)
            cache = target.cache
            return cls(
                target=target,
                places=places,
                fits=lambda batch, rows: share is None or cache.bytes_for(batch, rows) <= share,
            )
        if config.cache_bytes is not None:
            each = engine.max_length * (engine.target_row_bytes + engine.draft_row_bytes)
            places = min(places, config.cache_bytes // each)
            if not places:
                raise ConfigError(
                    f"cache_bytes must be at least the {each} bytes of one sequence of this engine, found "
                    f"{config.cache_bytes}: raise it, or build the engine with a smaller --max-length"
                )
        return cls(target=engine.new_target(batch=places), places=places, fits=lambda _batch, _rows: True)

    def batch(self, engine: "Engine", config: SchedulerConfig) -> Batch:
        """The batch that lives in it."""
        return Batch(
            self.target,
            engine.new_heads,
            places=self.places,
            reuse_prefixes=config.reuse_prefixes,
            fits=self.fits,
            costs=engine.costs,
        )


def _targets_share(engine: "Engine", cache_bytes: int) -> int:
    """The target's part of a limit: while a draft's cache moves to a larger place, it takes thrice its rows."""
    target, draft = engine.target_row_bytes, 3 * engine.draft_row_bytes
    return cache_bytes * target // (target + draft)


class _Worker:
    """The thread. It knows neither scheduler nor engine: so that forgetting these ends it."""

    def __init__(self, batch: Batch, limit: int) -> None:
        self.in_flight, self.closed = 0, False
        self._batch, self._queue = batch, deque[LiveSequence]()
        self._limit, self._changed = limit, threading.Condition()
        self._thread = threading.Thread(target=self._run, name="spec-trt", daemon=True)
        self._thread.start()

    def add(self, sequence: LiveSequence) -> None:
        """Queue a sequence, from any thread."""
        with self._changed:
            if self.closed:
                raise ClosedError("the engine is closed: load it again")
            if self.in_flight >= self._limit:
                raise BusyError(f"{self.in_flight} requests are in flight, no more are taken: try again later")
            self.in_flight += 1
            self._queue.append(sequence)
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread, and all sequences with it."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        error: BaseException = ClosedError("the engine was closed before the generation's end")
        try:
            while self._wait_for_work():
                self._admit()
                self._batch.step()
        except BaseException as fault:  # a fault of ours: nobody may wait for ever
            _LOG.exception("the scheduler ends on a fault of its own")
            error = fault
        with self._changed:
            self.closed, self.in_flight = True, 0
        for sequence in self._queue:
            sequence.feed.fail(error)
        self._batch.fail(error)
        del self._batch, self._queue

    def _wait_for_work(self) -> bool:
        """Wait until somebody is there; whether to go on."""
        with self._changed:
            self.in_flight = len(self._batch.live) + len(self._queue)
            self._changed.wait_for(lambda: self.closed or self.in_flight > 0)
            return not self.closed

    def _admit(self) -> None:
        """Begin those who have waited longest, as far as there is room."""
        for sequence in [*self._queue]:
            sequence.end_if_asked()
            if sequence.ended:
                self._queue.remove(sequence)
        while self._queue and self._batch.admit(self._queue[0]):
            self._queue.popleft()
