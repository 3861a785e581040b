"""EAGLE-2: a dynamic tree of the tokens that the draft model itself finds likeliest."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from spec_trt.runtime.allowance import Allowance, Size, sizes_up_to
from spec_trt.runtime.drafters.candidates import ROOT_INDEX, Candidates, rerank
from spec_trt.runtime.drafters.options import check_integer, check_share
from spec_trt.runtime.tree import TreeBuilder

if TYPE_CHECKING:
    from spec_trt.runtime.draft_model import DraftModel, DraftStep

__all__ = ["DynamicGrower", "Eagle2Options"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle2Options:
    """Options of EAGLE-2; the defaults are for a CPU, where every node costs.

    The two probabilities are what the paper's tree lacks: where the draft is unsure it stays small, and few levels are
    drafted. At 0 the tree is the paper's.

    Raises:
        ConfigError: A value is out of range.
    """

    depth: int = field(default=4, metadata={"help": "rounds of drafting at the most; the tree has a level more"})
    top_k: int = field(
        default=3,
        metadata={"help": "nodes drafted behind per round, and tokens behind each, where the head gives them"},
    )
    total_tokens: int = field(default=10, metadata={"help": "nodes of the tree at the most, the root included"})
    node_probability: float = field(
        default=0.08, metadata={"help": "leave out nodes that the draft finds less likely than this to be reached"}
    )
    level_probability: float = field(
        default=0.4,
        metadata={"help": "end the tree where the nodes to draft behind are together less likely than this"},
    )

    def __post_init__(self) -> None:
        check_integer("depth", self.depth, at_least=0)
        check_integer("top_k", self.top_k, at_least=1)
        check_integer("total_tokens", self.total_tokens, at_least=1)
        check_share("node_probability", self.node_probability)
        check_share("level_probability", self.level_probability)


class DynamicGrower:
    """EAGLE-2 (Li et al. 2024, arXiv 2406.16858, section 4): expand likely nodes, then keep the likeliest of all.

    Args:
        options: The method's options.
        model: The draft model.
        eos_ids: Tokens after which nothing is drafted.
    """

    logits = False

    def __init__(self, options: Eagle2Options, *, model: "DraftModel", eos_ids: frozenset[int]) -> None:
        self._options, self._model, self._eos_ids = options, model, eos_ids
        self._top_k = min(options.top_k, model.facts.top_k)

    def sizes(self) -> Sequence[Size]:
        """Up to its largest tree; how many levels so many nodes will have is a guess."""
        return [
            Size(nodes=nodes, levels=min(self._options.depth, max(0, nodes - 1).bit_length()))
            for nodes in sizes_up_to(self._options.total_tokens - 1)
        ]

    def grow(self, builder: TreeBuilder, step: "DraftStep", max_depth: int, allowance: Allowance) -> None:
        """Draft a tree of the likeliest nodes; see `Grower.grow`."""
        found, newest, limit = Candidates(), 0, self._limit(allowance)
        self._add_level(found, step, [ROOT_INDEX])
        for _ in range(min(self._options.depth, max_depth - 1)):
            beam = self._beam(found, newest, limit)
            if not self._may_grow(found, beam, limit):
                break
            rows = [(index - newest) // self._top_k for index in beam]
            step = self._model.expand(step, rows, [found.tokens[index] for index in beam])
            newest = len(found)
            self._add_level(found, step, beam)
        kept = _kept(found, replace(limit, nodes=min(limit.nodes, allowance.affordable(found.scores))))
        found.insert(builder, kept, _places(found.scores, kept))

    def _add_level(self, found: Candidates, step: "DraftStep", parents: Sequence[int]) -> None:
        log_probs = step.log_probs[:, : self._top_k].tolist()
        for parent, tokens, added in zip(parents, step.token_ids[:, : self._top_k].tolist(), log_probs, strict=True):
            for token, log_prob in zip(tokens, added, strict=True):
                found.add(parent, token, log_prob)

    def _limit(self, allowance: Allowance) -> "_Limit":
        """What the tree may have, by the options, or by what nodes and levels cost."""
        options = self._options
        lowest, least = allowance.least_chance, allowance.level_chance
        lowest = options.node_probability if lowest is None else lowest
        least = options.level_probability if least is None else least
        return _Limit(
            nodes=min(options.total_tokens - 1, allowance.nodes),
            lowest=math.log(lowest) if lowest > 0 else -math.inf,
            level_probability=least,
        )

    def _beam(self, found: Candidates, newest: int, limit: "_Limit") -> list[int]:
        """The newest level's likeliest nodes that something can follow."""
        open_ones = [
            index
            for index in range(newest, len(found))
            if found.tokens[index] not in self._eos_ids and found.scores[index] >= limit.lowest
        ]
        return sorted(open_ones, key=lambda index: -found.scores[index])[: self._top_k]

    def _may_grow(self, found: Candidates, beam: Sequence[int], limit: "_Limit") -> bool:
        """Whether a level behind the beam is worth drafting, and something of it could be kept.

        It scores no higher than the beam, and ties go to the earlier.
        """
        if found.chance(beam) < limit.level_probability:
            return False
        kept = _kept(found, limit)
        has_room = len(kept) < limit.nodes
        return bool(beam) and (
            has_room or found.scores[beam[0]] > min((found.scores[index] for index in kept), default=0.0)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limit:
    """What one tree may have.

    Attributes:
        nodes: Below the root at the most.
        lowest: Log-probability that a node must have.
        level_probability: How likely the nodes that a level is drafted behind must be, together.
    """

    nodes: int
    lowest: float
    level_probability: float


def _kept(found: Candidates, limit: _Limit) -> list[int]:
    """The candidates that make the tree."""
    return [index for index in rerank(found.scores, limit.nodes) if found.scores[index] >= limit.lowest]


def _places(scores: Sequence[float], kept: Sequence[int]) -> dict[int, int]:
    """Of each of some candidates, how many of them are likelier."""
    return {index: place for place, index in enumerate(sorted(kept, key=lambda index: -scores[index]))}
