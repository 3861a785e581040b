"""What is asked of a generation, a generation under way, and what comes of it."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, get_args

from spec_trt.errors import BackendError, ConfigError, SpecTrtError
from spec_trt.runtime.accept import Guarantee
from spec_trt.runtime.allowance import BudgetName
from spec_trt.runtime.drafters.options import check_flag, check_integer
from spec_trt.runtime.live_sequence import LiveSequence
from spec_trt.runtime.sampling import Sampling
from spec_trt.runtime.stats import Stats
from spec_trt.runtime.stop import Emission, FinishReason

__all__ = ["Generation", "GenerationConfig", "Result"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationConfig:
    """How to generate.

    Attributes:
        method: The speculative method's name.
        options: The method's own options, by name.
        sampling: How the next token is chosen; the likeliest one by default.
        max_new_tokens: Tokens to emit at the most.
        stop: Texts that end the generation and are cut off.
        ignore_eos: Whether to go on past the model's end-of-sequence tokens.
        log_probs: Whether every token comes with the target's log-probability of it, before sampling.
        budget: Nodes of a tree at the most, the root included; `auto` for as many as pay, by the costs that
            `spec-trt profile --save` has measured, and what the options allow; `fixed` for what the options say.
    """

    method: str = "autoregressive"
    options: Mapping[str, Any] = field(default_factory=dict)
    sampling: Sampling = field(default_factory=Sampling)
    max_new_tokens: int = 256
    stop: Sequence[str] = ()
    ignore_eos: bool = False
    log_probs: bool = False
    budget: int | BudgetName = "fixed"

    def __post_init__(self) -> None:
        check_integer("max_new_tokens", self.max_new_tokens, at_least=1)
        check_flag("ignore_eos", self.ignore_eos)
        check_flag("log_probs", self.log_probs)
        if not isinstance(self.sampling, Sampling):
            raise ConfigError(f"sampling must be a Sampling: found {self.sampling!r}; give Sampling(...)")
        if not isinstance(self.options, Mapping):
            raise ConfigError(f"options must be a mapping from names to values: found {self.options!r}; give a dict")
        if not isinstance(self.stop, Sequence) or not all(isinstance(text, str) for text in self.stop):
            raise ConfigError(f"stop must be a list of strings: found {self.stop!r}; give one, or leave it out")
        if self.budget in get_args(BudgetName):
            return
        if not isinstance(self.budget, int) or isinstance(self.budget, bool) or self.budget < 1:
            raise ConfigError(
                f"budget must be auto, fixed or a number of nodes from 1 on: found {self.budget!r}; give one of them"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A finished generation; nothing that was cut by a stop is in it.

    Attributes:
        text: What was generated.
        token_ids: The same as tokens.
        finish_reason: Why it ended; cancelled or out of time, it has what there was until then.
        guarantee: What it has in common with plain decoding's: every token, its distribution only, or neither.
        stats: What it cost and gained.
        log_probs: The target's log-probability of each token, before sampling; None unless asked for.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    guarantee: Guarantee
    stats: Stats
    log_probs: list[float] | None = None


class Generation:
    """A generation under way: iterate it for pieces as they come, or take the whole `result`.

    It goes on whether or not somebody reads; it is cancelled when it is closed, left as a context, or forgotten.

    Args:
        sequence: What is decoded elsewhere.
        log_probs: Whether they were asked for.
        served_by: What decodes it, kept alive until nobody waits any more.
    """

    def __init__(self, sequence: LiveSequence, *, log_probs: bool, served_by: object = None) -> None:
        self._sequence, self._feed, self._log_probs = sequence, sequence.feed, log_probs
        self._served_by = served_by

    @property
    def stats(self) -> Stats:
        """What it has cost and gained so far."""
        return self._sequence.stats

    @property
    def ended(self) -> bool:
        """Whether nothing more comes."""
        return self._feed.ended

    def __iter__(self) -> Iterator[Emission]:
        """The pieces from the first one on, each as soon as it is there.

        Raises:
            SpecTrtError: What ended the generation.
        """
        seen = 0
        while True:
            self._feed.wait(seen)
            for emission in self._feed.emissions[seen:]:
                seen += 1
                yield emission
            if self._is_over(seen):
                return

    async def __aiter__(self) -> AsyncIterator[Emission]:
        """As `__iter__`, for an event loop."""
        loop, changed, seen = asyncio.get_running_loop(), asyncio.Event(), 0
        forget = self._feed.listen(lambda: loop.call_soon_threadsafe(changed.set))
        try:
            while True:
                changed.clear()
                for emission in self._feed.emissions[seen:]:
                    seen += 1
                    yield emission
                if self._is_over(seen):
                    return
                await changed.wait()
        finally:
            forget()

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the end and return all of it.

        Args:
            timeout: Seconds to wait at the most; the generation goes on afterwards.

        Raises:
            TimeoutError: It has not ended by then.
            SpecTrtError: What ended it instead.
        """
        if not self._feed.wait(timeout=timeout):
            raise TimeoutError(f"the generation has not ended within {timeout} s: wait longer, or close it")
        return self._result()

    async def aresult(self) -> Result:
        """As `result`, for an event loop; who stops waiting cancels the generation."""
        try:
            async for _ in self:
                pass
        except BaseException:
            self.close()
            raise
        return self._result()

    def close(self) -> None:
        """Cancel what is left of it; it ends with the pass that is running."""
        self._sequence.cancel()

    def __enter__(self) -> "Generation":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> str:
        raise ConfigError("a generation can't be pickled: hand over its result")

    def __del__(self) -> None:
        if hasattr(self, "_sequence"):
            self._sequence.cancel()

    def _is_over(self, seen: int) -> bool:
        """Whether all of it has been seen."""
        if not self._feed.ended or seen < len(self._feed.emissions):
            return False
        self._raise_error()
        return True

    def _raise_error(self) -> None:
        """Raise what ended it: an error of its own for everybody who asks, as each adds its own traceback."""
        error = self._feed.error
        if isinstance(error, SpecTrtError):
            raise type(error)(*error.args) from error
        if error is not None:
            raise BackendError(f"the generation failed ({type(error).__name__}: {error})") from error

    def _result(self) -> Result:
        self._raise_error()
        emissions = self._feed.emissions
        reason = emissions[-1].finish_reason
        assert reason is not None  # the last piece's
        return Result(
            text="".join(emission.text for emission in emissions),
            token_ids=[token for emission in emissions for token in emission.token_ids],
            finish_reason=reason,
            guarantee=self._sequence.acceptance.guarantee,
            stats=self.stats,
            log_probs=[number for emission in emissions for number in emission.log_probs] if self._log_probs else None,
        )
