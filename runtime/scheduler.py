"""Many requests at once, each served as if it were alone."""

import weakref
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from spec_trt.errors import ConfigError, PromptError
from spec_trt.runtime.cache_room import CacheRoom, Fits
from spec_trt.runtime.drafters.options import check_integer
from spec_trt.runtime.generation import Generation, GenerationConfig
from spec_trt.runtime.live_sequence import LiveSequence
from spec_trt.runtime.worker import Worker

if TYPE_CHECKING:
    from spec_trt.runtime.engine import Engine, Prompt

__all__ = ["Scheduler", "SchedulerConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """How many requests are served at once.

    Attributes:
        slots: Sequences decoded together at the most; a TensorRT engine's own --max-batch may allow fewer.
        queue: Requests that may wait for a slot; more are refused.
        cache_bytes: Memory that the KV caches may take, a draft head's included, but not 4 MiB that each of a head's
            may keep, nor the features of up to 1024 rows that wait for it while nothing is drafted; any when None. A
            request waits until its rows have room.
        reuse_prefixes: Whether a prompt that begins as an earlier one did takes over its rows in the cache, by whole
            parts that prompts are read in: what is generated is the same.
    """

    slots: int = 16
    queue: int = 256
    cache_bytes: int | None = None
    reuse_prefixes: bool = True

    def __post_init__(self) -> None:
        check_integer("slots", self.slots, at_least=1)
        check_integer("queue", self.queue, at_least=0)
        if self.cache_bytes is not None:
            check_integer("cache_bytes", self.cache_bytes, at_least=1)


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
        self._engine = engine
        with engine.claimed_by(self):  # nobody sees it half made
            room = CacheRoom.of(engine, self.config)
            self._fits: Fits | None = room.fits
            self._worker = Worker(room.batch(engine, self.config), room.places + self.config.queue)
            self._stop = weakref.finalize(self, self._worker.close)  # also at the interpreter's exit

    def submit(
        self,
        prompt: "Prompt",
        config: GenerationConfig | None = None,
        *,
        timeout: float | None = None,
        wait: bool = False,
    ) -> Generation:
        """Queue a request.

        Args:
            prompt: A text, or token ids.
            config: How to generate; plain greedy decoding by default.
            timeout: Seconds from now on after which it ends with what it has, finish reason `timeout`.
            wait: Whether to wait where the queue is full.

        Raises:
            PromptError: The prompt is empty, does not fit, or has an id outside the vocabulary.
            ConfigError: The method or an option is unknown, or the method does not go with the sampling.
            BusyError: The queue is full, and this is not to wait.
            ClosedError: The scheduler is closed.
        """
        self._engine.check_process()
        config = config or GenerationConfig()
        sequence = self._engine.prepare(prompt, config, timeout=timeout)
        return self.run(sequence, log_probs=config.log_probs, wait=wait)

    def run(self, sequence: LiveSequence, *, log_probs: bool = False, wait: bool = False) -> Generation:
        """Queue a sequence that is made already; see `submit`."""
        if self._fits is not None and not self._fits(1, sequence.longest):
            raise PromptError(
                f"the request may grow to {sequence.longest} tokens, more than fit the cache's limit of "
                f"{self.config.cache_bytes} bytes: shorten the prompt, ask for fewer tokens, or raise cache_bytes"
            )
        self._worker.add(sequence, wait=wait)
        return Generation(sequence, log_probs=log_probs, served_by=self)

    @property
    def in_flight(self) -> int:
        """Requests that have come and not ended, those in the queue included."""
        return self._worker.in_flight

    @property
    def closed(self) -> bool:
        """Whether it takes no more requests."""
        return self._worker.closed

    def close(self) -> None:
        """End all requests with `ClosedError`, and give the caches back. It may be closed again.

        A process that was forked has nothing of it to close.
        """
        if self._engine.is_forked:
            return
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
