"""How often guesses of a kind are right, learned from a sequence's own passes."""

import math
from collections.abc import Hashable, Mapping, Sequence

__all__ = ["HitRates"]

_FIRST_TRIES = 4.0
"""What is believed beforehand counts as so many guesses."""

_FADES = 0.985
"""What is left of what was seen, after a pass."""


class HitRates:
    """The share of right guesses by kind, where there is no head that knows how likely its drafts are.

    Args:
        believed: By kind, the share to begin with.
        otherwise: That of the other kinds.
    """

    def __init__(self, believed: Mapping[Hashable, float], otherwise: float) -> None:
        self._believed, self._otherwise = believed, otherwise
        self._counts: dict[Hashable, tuple[float, float]] = {}

    def scores(self, kinds: Sequence[Hashable]) -> list[float]:
        """Of each guess of a chain, the logarithm of how likely it is to be right, those before it too.

        Args:
            kinds: Of the guesses, in their order.
        """
        scores, score = [], 0.0
        for kind in kinds:
            right, tries = self._count(kind)
            score += math.log(right / tries)
            scores.append(score)
        return scores

    def learn(self, kinds: Sequence[Hashable], accepted: int) -> None:
        """Take what became of a chain: so many were right, and the next, if there was one, was wrong.

        What was seen fades from pass to pass: a kind that has been wrong gets its chance again.
        """
        self._counts = {kind: (_FADES * right, _FADES * tries) for kind, (right, tries) in self._counts.items()}
        for number, kind in enumerate(kinds[: accepted + 1]):
            right, tries = self._counts.get(kind, (0.0, 0.0))
            self._counts[kind] = (right + (number < accepted), tries + 1)

    def _count(self, kind: Hashable) -> tuple[float, float]:
        right, tries = self._counts.get(kind, (0.0, 0.0))
        return right + _FIRST_TRIES * self._believed.get(kind, self._otherwise), tries + _FIRST_TRIES
