"""What one sequence's drafts have been worth so far, and will be."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from spec_trt.errors import ConfigError
from spec_trt.runtime.allowance import Size
from spec_trt.runtime.tree import Tree

__all__ = ["Outlook", "Worth"]

_MEMORY = 32
"""Passes after which a pass counts little: texts change from one paragraph to the next."""

_PRIOR = 0.2
"""What is known beforehand counts as so large a share of the passes that are remembered."""

_DRAFTING_PASSES = 6
"""Passes over which the runs of the draft model are averaged."""

_FORGOTTEN = 0.97
"""What is left, after a pass, of what is known of places that it did not draft: they may have changed since."""

_FEWEST_PASSES = 3
"""What is left at the least."""

_LONGEST_REST = 200
"""Passes without a draft after which nothing fades further."""

_GUESS_PASSES = 3
"""What a guess counts as."""

_CLAIMS = 6
"""Accepted drafts that it takes to say how well a drafter knows its own chances."""

_SURE = 0.999
"""As likely as anything is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """What a method's drafts were worth in earlier passes.

    Attributes:
        accepted: By place in the drafter's own order, in what share of the passes such a node was accepted.
        present: By number of nodes, from none on, in what share the tree had more.
        calibration: Accepted nodes over those that the drafter expected to be; 1 where it expects nothing.

    Raises:
        ConfigError: These are no shares, or not of the same places.
    """

    accepted: Sequence[float]
    present: Sequence[float]
    calibration: float = 1.0

    def __post_init__(self) -> None:
        is_sound = len(self.accepted) == len(self.present) and self.calibration > 0
        if not is_sound or not all(0 <= share <= 1 for share in (*self.accepted, *self.present)):
            raise ConfigError(
                f"what drafts were worth needs shares from 0 to 1 of the same places, and a calibration above 0: found "
                f"{self}; measure again"
            )

    @property
    def signs(self) -> list[float]:
        """By place, how likely the drafter itself finds such a node, on average: `accepted` before calibration."""
        return [accepted / self.calibration for accepted in self.accepted]

    @classmethod
    def guessed(cls, places: int) -> "Worth":
        """One that is worth trying."""
        return cls(accepted=[0.5 * 0.7**place for place in range(places)], present=[1.0] * places)

    def resized(self, places: int) -> "Worth":
        """What trees of another size would be worth, as far as can be said: more nodes are accepted ever less often."""
        last = self.accepted[-1] if self.accepted else 0.0
        further = [last * 0.8**place for place in range(1, places - len(self.accepted) + 1)]
        return Worth(
            accepted=[*self.accepted, *further][:places],
            present=[*self.present, *(1.0 for _ in further)][:places],
            calibration=self.calibration,
        )


class Outlook:
    """How many nodes a sequence's trees have, and how many of each place in the drafter's own order will be accepted.

    Where the drafter says how likely its nodes are, what it says counts, times how often it has been right: a pass
    tells more by that than by the few nodes that it accepts.

    Attributes:
        sizes: Those worth choosing among, smallest first.

    Args:
        sizes: See above.
        known: What is known beforehand, of as many places as the largest size has nodes.
        beyond: What learns from this one's passes too, and that this one goes on from; None for none.
        memory: Passes after which a pass counts little.
    """

    def __init__(
        self,
        sizes: Sequence[Size],
        known: Worth | None = None,
        *,
        beyond: "Outlook | None" = None,
        memory: int = _MEMORY,
    ) -> None:
        self.sizes, self._memory = sizes, memory
        self._learners: tuple[Outlook, ...] = (self,) if beyond is None else (*beyond._learners, self)
        self._sizes, places = [size.nodes for size in sizes], sizes[-1].nodes
        passes = _PRIOR * memory if known or beyond else _GUESS_PASSES
        known = known or (beyond.worth if beyond else Worth.guessed(places))
        self._claimed = max(passes, _CLAIMS)
        self._kept = self._claimed * known.calibration
        self._signs = known.signs
        self._present = list(known.present)
        self._passes: list[float] = [passes] * places
        self._rested = 0
        self._drafting = {size.nodes: (float(size.levels), float(size.levels)) for size in sizes}
        if beyond is not None:
            self._drafting = dict(beyond._drafting)
        self._usual: Sequence[float] = beyond._usual if beyond else known.present
        self._gains: list[float] = []  # added up anew when asked for

    @property
    def worth(self) -> Worth:
        """What has been learned."""
        accepted = [min(self.calibration * sign, 1.0) for sign in self._signs]
        return Worth(accepted=accepted, present=list(self._present), calibration=self.calibration)

    @property
    def calibration(self) -> float:
        """How many nodes are accepted for one that the drafter expects to be."""
        return self._kept / self._claimed

    def size(self, nodes: int) -> Size:
        """The largest size with no more nodes."""
        return self.sizes[bisect_right(self._sizes, nodes) - 1]

    def gain(self, nodes: int) -> float:
        """Drafted tokens that a pass accepts where its tree may have so many nodes."""
        if not self._gains:
            calibration = self.calibration
            self._gains = list(accumulate((calibration * sign for sign in self._signs), initial=0.0))
        return self._gains[min(nodes, len(self._gains) - 1)]

    def present(self, count: int, *, usual: bool = False) -> float:
        """How likely a tree that may have more than so many nodes is to have them; never certain.

        Args:
            count: Nodes below the root.
            usual: Whether nothing has a price.
        """
        shares = self._usual if usual else self._present
        return min(shares[count], _SURE) if count < len(shares) else 0.0

    def drafting(self, size: Size) -> tuple[float, float]:
        """Runs of the draft model that a tree of some size takes behind the first, and nodes drafted behind in them."""
        return self._drafting[size.nodes]

    def learn(self, tree: Tree, path: Sequence[int], allowed: int) -> None:
        """Take what a pass has shown.

        Args:
            tree: What was verified.
            path: Its accepted nodes, the root first.
            allowed: Nodes below the root that it could have had.
        """
        allowed = min(allowed, len(self._signs))
        if not allowed:
            self._rest()
            return
        signs = _signs(tree, path)
        for outlook in self._learners:
            outlook._wake()
            outlook._blend(allowed, len(tree) - 1, signs)
            outlook._fade(allowed)
            outlook._calibrate(sum(tree.chances.values()), len(path) - 1 if tree.chances else 0)
            outlook._learn_drafting(tree, self.size(allowed).nodes)
            outlook._gains.clear()

    def go_back(self, worth: Worth, share: float) -> None:
        """Go some share of the way back to what was known at first, of as many places; no surer of it than before."""
        calibration = self.calibration + share * (worth.calibration - self.calibration)
        self._kept = calibration * self._claimed
        self._signs = _part_way(self._signs, worth.signs, share)
        self._present = _part_way(self._present, worth.present, share)
        self._gains.clear()

    def _blend(self, allowed: int, nodes: int, signs: dict[int, float]) -> None:
        for place in range(allowed):
            self._passes[place] = min(self._passes[place] + 1, self._memory)
            rate = 1 / self._passes[place]
            self._present[place] += rate * ((place < nodes) - self._present[place])
            self._signs[place] += rate * (signs.get(place, 0.0) - self._signs[place])

    def _fade(self, first: int) -> None:
        """Let what is known of the places from one on count less."""
        self._passes[first:] = [max(_FORGOTTEN * passes, _FEWEST_PASSES) for passes in self._passes[first:]]

    def _rest(self) -> None:
        for outlook in self._learners:
            outlook._rested += 1

    def _wake(self) -> None:
        """Let everything fade, once for every pass that drafted nothing: how much is known, but not what."""
        for _ in range(min(self._rested, _LONGEST_REST)):
            self._fade(0)
            self._calibrate(0.0, 0)
        self._rested = 0

    def _learn_drafting(self, tree: Tree, nodes: int) -> None:
        levels, inner = self._drafting[nodes]
        shape = tree.topology
        self._drafting[nodes] = (
            levels + (max(shape.depth - 1, 0) - levels) / _DRAFTING_PASSES,
            inner + (shape.inner - inner) / _DRAFTING_PASSES,
        )

    def _calibrate(self, claimed: float, kept: int) -> None:
        """Where nothing is claimed, what is known fades, so that a few claims can say otherwise."""
        left = _FORGOTTEN if not claimed and self._claimed > _CLAIMS else 1 - 1 / (10 * self._memory)
        self._claimed, self._kept = left * self._claimed + claimed, left * self._kept + kept


def _signs(tree: Tree, path: Sequence[int]) -> dict[int, float]:
    """Of each place that a tree has a node of, how likely the drafter found it, or else whether it was accepted."""
    taken = set(path)
    return {tree.place(node): tree.chances.get(node, float(node in taken)) for node in range(1, len(tree))}


def _part_way(here: Sequence[float], there: Sequence[float], share: float) -> list[float]:
    return [one + share * (other - one) for one, other in zip(here, there, strict=True)]
