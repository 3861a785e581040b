"""Where a generation ends: the one place that decides on text, tokens and finish reason."""

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from spec_trt.errors import ConfigError
from spec_trt.runtime.detokenizer import Detokenizer

__all__ = ["Emission", "FinishReason", "StopChecker"]

FinishReason = Literal["eos", "stop", "length", "cancelled", "timeout"]
"""What ended a generation: an end-of-sequence token, a stop string, the limit, its caller, or its time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Emission:
    """What may be given to the caller after a step; all emissions joined are the result.

    Attributes:
        text: New text, none of which can still turn out to be part of a stop string.
        token_ids: New tokens, all of whose text has been given out.
        finish_reason: Why the generation ended, or None while it goes on.
        log_probs: The target's log-probabilities of the new tokens, before sampling; empty unless asked for.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None
    log_probs: list[float] = field(default_factory=list)


class StopChecker:
    """Cuts one sequence's tokens at an EOS token, a stop string or the limit, and streams the rest.

    The result is a function of the tokens alone, however they come in blocks:

    - Nothing counts after `max_new_tokens` tokens, or from the first EOS token on (the EOS token
      is one of the `max_new_tokens`, and is not part of the result).
    - The text of what is left is cut where the earliest stop string starts ("stop").
      `token_ids` then are the longest run of tokens that decodes to a beginning of that text.
    - Otherwise the reason is "eos", or "length" at the limit.

    Where one stop string starts inside another, more tokens may be asked for until the earlier
    one is decided.

    Args:
        detokenizer: A fresh one; it belongs to this sequence.
        eos_ids: Tokens that end the sequence.
        stop: Strings that end the sequence, wherever they lie across tokens.
        max_new_tokens: The limit, the room left in the context included; at 0 the sequence is
            finished from the start.

    Raises:
        ConfigError: A stop string is empty, or the limit is negative.
    """

    def __init__(
        self,
        *,
        detokenizer: Detokenizer,
        eos_ids: Collection[int],
        stop: Sequence[str] = (),
        max_new_tokens: int,
    ) -> None:
        _check_stop(stop)
        if max_new_tokens < 0:
            raise ConfigError(f"max_new_tokens must be 0 or more: found {max_new_tokens}; give a positive number")
        self._detokenizer = detokenizer
        self._eos_ids = frozenset(eos_ids)
        self._stop = tuple(dict.fromkeys(stop))
        self._remaining = max_new_tokens
        self._finish_reason: FinishReason | None = None if max_new_tokens else "length"
        self._released_tokens = 0
        self._released_chars = 0
        self._held_text = ""
        self._held_tokens: list[int] = []
        self._held_ends: list[int] = []  # where a held token's text ends, as far as it is complete

    @property
    def remaining(self) -> int:
        """How many more tokens are of use."""
        return self._remaining

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the sequence ended, or None while it goes on."""
        return self._finish_reason

    def push(self, block: Sequence[int]) -> Emission:
        """Take the tokens of a step; what comes after the end is ignored.

        Args:
            block: The accepted tokens and the extra one, in order.

        Returns:
            The text and tokens that are now certain to be part of the result.
        """
        if self._finish_reason is not None:
            return Emission(text="", token_ids=[], finish_reason=self._finish_reason)
        allowed = list(block[: self._remaining])
        eos = next((index for index, token in enumerate(allowed) if token in self._eos_ids), None)
        self._remaining -= len(allowed) if eos is None else eos + 1
        self._take(allowed[:eos])
        if eos is not None:
            return self._end("eos")
        return self._end("length") if self._remaining == 0 else self._go_on()

    def end(self, reason: FinishReason) -> Emission:
        """End the sequence before its end, with all that is held back."""
        return self._end(reason)

    def _take(self, tokens: list[int]) -> None:
        """Decode new tokens; one by one where a stop string may cut between them."""
        self._held_tokens.extend(tokens)
        for part in [[token] for token in tokens] if self._stop else [tokens]:
            self._hold(self._detokenizer.push(part))

    def _hold(self, piece: str) -> None:
        """Append text to what is held back, and note where the tokens that it completes end."""
        self._held_text += piece
        newly_settled = self._detokenizer.settled - self._released_tokens - len(self._held_ends)
        self._held_ends += [self._released_chars + len(self._held_text)] * newly_settled

    def _go_on(self) -> Emission:
        """Release what no stop string can reach, and finish if the earliest one is certain."""
        cut, undecided = self._earliest_stop(), self._earliest_beginning()
        if cut is None or undecided < cut:
            return self._release(undecided)
        self._finish_reason = "stop"
        return self._release(cut)

    def _end(self, reason: FinishReason) -> Emission:
        """Release everything up to a stop string, now that no more tokens come."""
        self._hold(self._detokenizer.flush())
        cut = self._earliest_stop()
        self._finish_reason = reason if cut is None else "stop"
        return self._release(len(self._held_text) if cut is None else cut)

    def _release(self, chars: int) -> Emission:
        """Give out the first `chars` of the held text, and the tokens that end by there."""
        text, self._held_text = self._held_text[:chars], self._held_text[chars:]
        self._released_chars += chars
        tokens = bisect_right(self._held_ends, self._released_chars)
        token_ids, self._held_tokens = self._held_tokens[:tokens], self._held_tokens[tokens:]
        self._held_ends = self._held_ends[tokens:]
        self._released_tokens += tokens
        return Emission(text=text, token_ids=token_ids, finish_reason=self._finish_reason)

    def _earliest_stop(self) -> int | None:
        """Where in the held text the first complete stop string starts."""
        starts = [start for stop in self._stop if (start := self._held_text.find(stop)) >= 0]
        return min(starts, default=None)

    def _earliest_beginning(self) -> int:
        """Where the held text's longest end starts that is the beginning of a stop string."""
        longest = max((_beginning_at_end(self._held_text, stop) for stop in self._stop), default=0)
        return len(self._held_text) - longest


def _beginning_at_end(text: str, stop: str) -> int:
    """The length of the longest end of `text` that an incomplete `stop` begins with."""
    sizes = range(min(len(text), len(stop) - 1), 0, -1)
    return next((size for size in sizes if text.endswith(stop[:size])), 0)


def _check_stop(stop: Sequence[str]) -> None:
    if isinstance(stop, str):
        raise ConfigError(f"stop must be a list of strings: found the string {stop!r}; write [{stop!r}]")
    if "" in stop:
        raise ConfigError("a stop string must have at least one character: found an empty one; leave it out")
