"""The places of a batch: which sequence has which part of the cache, and what it takes over of the last one there."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from spec_trt.runtime.drafters.heads import HeadName, Heads
from spec_trt.runtime.kv_cache import KVCache
from spec_trt.runtime.live_sequence import LiveSequence

__all__ = ["Slot", "Slots"]


@dataclass(slots=True, kw_only=True)
class Slot:
    """A place.

    Attributes:
        heads: Draft heads with caches of their own.
        sequence: Who has it; None when idle.
        tokens: Those whose rows an idle place still holds.
        head: The head whose own cache holds rows of the same tokens.
        left: When it became idle: places that did so earlier have smaller numbers.
    """

    heads: Heads
    sequence: LiveSequence | None = None
    tokens: list[int] = field(default_factory=list)
    head: HeadName | None = None
    left: int = 0


class Slots:
    """Gives places to sequences. Those that decode have the first ones, the one that is being read comes behind them.

    A place is a sequence of the cache; the cache gets more of them as they are asked for.

    Args:
        cache: The target's.
        new_heads: Opens the heads of one place.
        places: How many there may be.
        part: Tokens of the parts that prompts are read in: rows are taken over by whole parts, so that they are the
            very numbers that reading the prompt would give.
        reuse: Whether a prompt that begins as an idle place's text does takes over its rows.
        fits: Whether there is memory for a number of places with a number of rows each.
    """

    def __init__(
        self,
        cache: KVCache,
        new_heads: Callable[[], Heads],
        *,
        places: int,
        part: int,
        reuse: bool = True,
        fits: Callable[[int, int], bool] = lambda _places, _rows: True,
    ) -> None:
        self._cache, self._new_heads, self._fits = cache, new_heads, fits
        self._places, self._reuse = min(places, cache.batch) if cache.is_fixed else places, reuse
        self._slots = [Slot(heads=new_heads()) for _ in range(cache.batch)]
        self._part, self._clock = part, 0

    @property
    def live(self) -> list[LiveSequence]:
        """The sequences that have a place, in the places' order."""
        return [slot.sequence for slot in self._slots if slot.sequence is not None]

    def have_room(self, sequences: Sequence[LiveSequence]) -> bool:
        """Whether there are places, and memory, for some sequences beside those that have a place."""
        everybody = list(dict.fromkeys([*self.live, *sequences]))
        return self._batch_for(len(everybody), max(sequence.longest for sequence in everybody)) is not None

    def give(self, sequence: LiveSequence) -> bool:
        """Give a sequence the place behind the others, where there is one with rows enough for it until its end."""
        live = self.live
        batch = self._batch_for(len(live) + 1, max(other.longest for other in [*live, sequence]))
        if batch is None:
            return False
        place, kept = len(live), 0
        if place < len(self._slots):
            chosen, kept = self._best_idle(sequence, place)
            self._swap(chosen, place)
        self._lay_out(batch, place, kept, len(sequence.prompt))
        slot = self._slots[place]
        slot.sequence, slot.tokens = sequence, []
        sequence.begin(slot.heads, kept)
        return True

    def take_back(self, sequence: LiveSequence) -> None:
        """Make the place of a sequence that has ended idle, and close the gap."""
        live = self.live
        place, last = live.index(sequence), len(live) - 1
        slot = self._slots[place]
        keeps = self._reuse and sequence.feed.error is None
        slot.sequence, slot.left = None, self._clock
        slot.tokens = sequence.prompt[: sequence.read] if keeps else []
        slot.head = sequence.head if sequence.is_read else None
        slot.heads.forget()
        self._cache.keep(place, len(slot.tokens))
        self._clock += 1
        if place != last:
            decoding = last if live[last].is_read else last - 1
            self._swap(place, decoding)
            self._swap(decoding, last)

    def forget(self) -> None:
        """Let idle places hold no rows: after a fault, what they hold is not known."""
        for place, slot in enumerate(self._slots):
            if slot.sequence is None:
                slot.tokens = []
                self._cache.keep(place, 0)

    def _batch_for(self, needed: int, rows: int) -> int | None:
        """How many places the cache is to have; None where it can't have as many as are needed."""
        if needed > self._places:
            return None
        held = len(self._slots)
        roomy = held if needed <= held else max(needed, min(2 * held, self._places))
        return next((batch for batch in (roomy, needed) if self._fits(batch, rows)), None)

    def _best_idle(self, sequence: LiveSequence, first: int) -> tuple[int, int]:
        """The idle place whose rows serve a sequence best, or that has been idle longest; and how many serve."""
        kept = {place: self._kept(self._slots[place], sequence) for place in range(first, len(self._slots))}
        chosen = max(kept, key=lambda place: (kept[place], -self._slots[place].left))
        return chosen, kept[chosen]

    def _kept(self, slot: Slot, sequence: LiveSequence) -> int:
        """First rows of a place that a sequence takes over.

        A head drafts from outputs of the prompt's last tokens, so at least one is read again; and a draft model's own
        row is of its token and the next one.
        """
        kept = min(_shared(slot.tokens, sequence.prompt), len(sequence.prompt) - 1)
        if sequence.head is not None:
            own = slot.heads.rows(sequence.head)
            kept = int(min(kept - 1, own if sequence.head == slot.head or math.isinf(own) else 0))
        return max(0, kept) // self._part * self._part

    def _lay_out(self, batch: int, place: int, kept: int, prompt: int) -> None:
        """Make the cache fit the sequences that decode and a prompt; idle places keep what then has room."""
        added = [Slot(heads=self._new_heads()) for _ in range(batch - len(self._slots))]
        if place < len(self._slots):
            self._cache.keep(place, kept)
            self._slots[place].tokens = self._slots[place].tokens[:kept]  # right too where there is no memory below
        self._cache.fit(max(prompt, *self._cache.lengths[:place].tolist(), 0), batch)
        self._slots = [*self._slots[:batch], *added]
        for slot, rows in zip(self._slots, self._cache.lengths.tolist(), strict=True):
            slot.tokens = slot.tokens[:rows]
            if slot.sequence is None:
                slot.heads.cut(self._cache.capacity)

    def _swap(self, one: int, other: int) -> None:
        self._cache.swap(one, other)
        self._slots[one], self._slots[other] = self._slots[other], self._slots[one]


def _shared(tokens: Sequence[int], prompt: Sequence[int]) -> int:
    """With how many equal tokens two texts begin."""
    pairs = enumerate(zip(tokens, prompt, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(tokens), len(prompt)))
