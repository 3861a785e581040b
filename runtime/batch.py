"""Sequences decoded together: they join and leave between passes."""

from collections.abc import Callable, Iterable
from itertools import chain

from spec_trt.runtime.budget import Budget
from spec_trt.runtime.costs import Costs
from spec_trt.runtime.decode import decode_pass
from spec_trt.runtime.drafters.heads import Heads
from spec_trt.runtime.live_sequence import LiveSequence
from spec_trt.runtime.slots import Slots
from spec_trt.runtime.target import Target

__all__ = ["Batch"]

_SOON = 16
"""Passes: who joins within so many, and stays for as many, is reckoned with."""


class Batch:
    """Continuous batching (Yu et al. 2022, OSDI, "Orca"): a pass serves whoever is there.

    Prompts are read one after another, a part between two passes, so that those who decode don't stall. Not for
    several threads.

    Args:
        target: The model.
        new_heads: Opens draft heads with caches of their own.
        places: Sequences at once, at the most.
        reuse_prefixes: Whether a prompt takes over the rows of an earlier one that began alike.
        fits: Whether there is memory for a number of sequences with a number of rows each.
        costs: Reads what passes cost here, for sequences whose budget is `auto`.
    """

    def __init__(
        self,
        target: Target,
        new_heads: Callable[[], Heads],
        *,
        places: int,
        reuse_prefixes: bool = True,
        fits: Callable[[int, int], bool] = lambda _places, _rows: True,
        costs: Callable[[], Costs | None] = lambda: None,
    ) -> None:
        self._target, self._budget = target, Budget(costs)
        self._slots = Slots(
            target.cache, new_heads, places=places, part=target.prefill_chunk, reuse=reuse_prefixes, fits=fits
        )

    @property
    def live(self) -> list[LiveSequence]:
        """The sequences that have begun and not ended."""
        return self._slots.live

    def admit(self, sequence: LiveSequence) -> bool:
        """Begin a sequence, if there is room for it now: no other prompt is being read, a place and rows are free."""
        live = self._slots.live
        if live and not live[-1].is_read:
            return False
        with sequence.failing_alone():
            if not self._slots.give(sequence):
                return False
        self._release_ended()
        return True

    def step(self, waiting: Iterable[LiveSequence] = ()) -> None:
        """Read a part of the newest prompt, and take everybody else one pass further.

        Args:
            waiting: Sequences that are yet to be admitted, the next one first.
        """
        for sequence in self._slots.live:
            sequence.end_if_asked()
        self._release_ended()
        self._read()
        self._decode(waiting)
        self._release_ended()

    def fail(self, error: BaseException) -> None:
        """End all sequences with an error."""
        for sequence in self._slots.live:
            sequence.feed.fail(error)
        self._release_ended()
        self._slots.forget()

    def _read(self) -> None:
        live = self._slots.live
        if not live or live[-1].is_read:
            return
        sequence = live[-1]
        with sequence.failing_alone():
            part = sequence.next_part(self._target.prefill_chunk)
            with sequence.stats.time("prefill"):
                outputs = self._target.read(part, sequence.prompt_needs, slot=len(live) - 1)
            sequence.has_read(outputs, len(part))
        self._release_ended()

    def _decode(self, waiting: Iterable[LiveSequence]) -> None:
        decoding = [sequence for sequence in self._slots.live if sequence.is_read]
        if not decoding:
            return
        coming = self._coming(waiting)
        try:
            decode_pass(decoding, self._target, self._budget, coming=coming)
        except Exception as error:  # the pass was everybody's
            for sequence in decoding:
                sequence.feed.fail(error)
            self._release_ended()
            self._slots.forget()

    def _coming(self, waiting: Iterable[LiveSequence]) -> list[int]:
        """The rows of those who will soon join, as far as there is room for them, and then stay for a while."""
        coming, parts = list[LiveSequence](), 0
        for sequence in chain((sequence for sequence in self._slots.live if not sequence.is_read), waiting):
            unread = len(sequence.prompt) - 1 - sequence.read
            parts += -(-unread // self._target.prefill_chunk)
            if parts > _SOON or not self._slots.have_room([*coming, sequence]):
                break
            coming.append(sequence)
        return [len(sequence.prompt) for sequence in coming if sequence.stopper.remaining >= _SOON]

    def _release_ended(self) -> None:
        for sequence in self._slots.live:
            if sequence.ended:
                self._slots.take_back(sequence)
