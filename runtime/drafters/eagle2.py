"""EAGLE-2: a dynamic tree of the tokens that the draft model itself finds likeliest."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from spec_trt.runtime.drafters.options import check_integer
from spec_trt.runtime.tree import ROOT, TreeBuilder

if TYPE_CHECKING:
    from spec_trt.runtime.draft_model import DraftModel, DraftStep

__all__ = ["Candidates", "DynamicGrower", "Eagle2Options", "rerank"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle2Options:
    """Options of EAGLE-2; the defaults are for a CPU, where every node costs.

    Raises:
        ConfigError: A value is out of range.
    """

    depth: int = field(default=3, metadata={"help": "rounds of drafting at the most; the tree has a level more"})
    top_k: int = field(
        default=3,
        metadata={"help": "nodes drafted behind per round, and tokens behind each, where the head gives them"},
    )
    total_tokens: int = field(default=6, metadata={"help": "nodes of the tree, the root included"})

    def __post_init__(self) -> None:
        check_integer("depth", self.depth, at_least=0)
        check_integer("top_k", self.top_k, at_least=1)
        check_integer("total_tokens", self.total_tokens, at_least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Drafted nodes, parents first.

    Attributes:
        tokens: [candidates] int64.
        parents: [candidates] int64: the parent's index, -1 for the root.
        scores: [candidates] float32: summed log-probabilities from the root on.
    """

    tokens: NDArray[np.int64]
    parents: NDArray[np.int64]
    scores: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.tokens)

    def and_then(self, level: "Candidates") -> "Candidates":
        """These and a further level."""
        return Candidates(
            tokens=np.concatenate([self.tokens, level.tokens]),
            parents=np.concatenate([self.parents, level.parents]),
            scores=np.concatenate([self.scores, level.scores]),
        )


class DynamicGrower:
    """EAGLE-2 (Li et al. 2024, arXiv 2406.16858, section 4): expand likely nodes, then keep the likeliest of all.

    Args:
        options: The method's options.
        model: The draft model.
        eos_ids: Tokens after which nothing is drafted.
    """

    def __init__(self, options: Eagle2Options, *, model: "DraftModel", eos_ids: frozenset[int]) -> None:
        self._options, self._model, self._eos_ids = options, model, eos_ids
        self._top_k = min(options.top_k, model.facts.top_k)

    def grow(self, builder: TreeBuilder, step: "DraftStep", max_depth: int) -> None:
        """Draft a tree of the likeliest nodes; see `Grower.grow`."""
        found = self._behind(step, np.array([-1]), np.zeros(1, dtype=np.float32))
        newest = 0
        for _ in range(min(self._options.depth, max_depth - 1)):
            beam = self._beam(found, newest)
            if not self._may_grow(found, beam):
                break
            step = self._model.expand(step, (beam - newest) // self._top_k, found.tokens[beam])
            newest, found = len(found), found.and_then(self._behind(step, beam, found.scores[beam]))
        self._insert(builder, found)

    def _behind(self, step: "DraftStep", parents: NDArray[np.int64], scores: NDArray[np.float32]) -> Candidates:
        """The level behind some nodes; a log-probability that rounding has made positive counts as 0."""
        log_probs = np.minimum(step.log_probs[:, : self._top_k], 0)
        return Candidates(
            tokens=step.token_ids[:, : self._top_k].ravel(),
            parents=parents.repeat(self._top_k),
            scores=(scores[:, None] + log_probs).ravel(),
        )

    def _beam(self, found: Candidates, newest: int) -> NDArray[np.int64]:
        """The newest level's likeliest nodes that something can follow."""
        order = newest + np.argsort(-found.scores[newest:], kind="stable")
        pairs = zip(order.tolist(), found.tokens[order].tolist(), strict=True)
        open_ones = [index for index, token in pairs if token not in self._eos_ids]
        return np.array(open_ones[: self._top_k], dtype=np.int64)

    def _may_grow(self, found: Candidates, beam: NDArray[np.int64]) -> bool:
        """Whether something behind the beam could be kept: it scores no higher, and ties go to the earlier."""
        kept = self._kept(found)
        has_room = len(kept) < self._options.total_tokens - 1
        return len(beam) > 0 and (has_room or bool(found.scores[beam[0]] > found.scores[kept].min(initial=0)))

    def _kept(self, found: Candidates) -> NDArray[np.int64]:
        return rerank(found.scores, self._options.total_tokens - 1)

    def _insert(self, builder: TreeBuilder, found: Candidates) -> None:
        nodes = {-1: ROOT}
        for index in self._kept(found).tolist():
            nodes[index] = builder.add(nodes[int(found.parents[index])], int(found.tokens[index]))


def rerank(scores: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """The best-scored candidates, ties to the earlier, so that a parent outranks its children.

    Args:
        scores: [candidates] float32, level by level, none above its parent's.
        count: How many are wanted.

    Returns:
        Their indices in ascending order: [min(count, candidates)] int64.
    """
    return np.sort(np.argsort(-scores, kind="stable")[:count])
