"""One generation, pass by pass: when every phase was, what was drafted, and what of it was accepted."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from spec_trt.runtime.accept import Acceptance
from spec_trt.runtime.drafters.drafter import PassOutput
from spec_trt.runtime.live_sequence import LiveSequence
from spec_trt.runtime.stats import Phase, Stats
from spec_trt.runtime.tree import ROOT, Tree

__all__ = ["DraftedPass", "RankPath", "RecordedAcceptance", "RecordedStats", "Recording", "Span"]

RankPath = tuple[int, ...]
"""A node below the root, by the place among its siblings of every node on the way to it."""


@dataclass(frozen=True, slots=True)
class Span:
    """When a phase of a pass was, from and to readings of `time.perf_counter`."""

    phase: Phase
    started: float
    ended: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.started


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftedPass:
    """What a pass drafted and accepted.

    Attributes:
        past: Committed rows before it.
        drafts: The nodes below the root.
        accepted: The deepest accepted one; empty where it is the root.
    """

    past: int
    drafts: Sequence[RankPath]
    accepted: RankPath

    @property
    def nodes(self) -> int:
        """Nodes verified, the root included."""
        return len(self.drafts) + 1

    @property
    def depth(self) -> int:
        """Depth of the deepest node."""
        return max(map(len, self.drafts), default=0)


@dataclass(kw_only=True)
class RecordedStats(Stats):
    """Counts and times, and when it was."""

    spans: list[Span] = field(default_factory=list)

    def add_span(self, phase: Phase, started: float, ended: float) -> None:
        """Keep a phase's time; see `Stats.add_span`."""
        super().add_span(phase, started, ended)
        self.spans.append(Span(phase, started, ended))


class RecordedAcceptance:
    """Another rule of acceptance, whose trees and decisions are kept.

    Attributes:
        decisions: Of every pass, the tree and its accepted nodes.

    Args:
        inner: What decides.
    """

    def __init__(self, inner: Acceptance) -> None:
        self.needs, self.guarantee = inner.needs, inner.guarantee
        self.decisions: list[tuple[Tree, list[int]]] = []
        self._inner = inner

    def accept(self, tree: Tree, out: PassOutput) -> tuple[list[int], int]:
        """See `Acceptance.accept`."""
        path, extra = self._inner.accept(tree, out)
        self.decisions.append((tree, path))
        return path, extra


class Recording:
    """What a sequence does, kept from now on.

    Attributes:
        method: Who drafts for it.
        stats: Its counts and times.

    Args:
        method: See above.
        sequence: Not begun yet.
    """

    def __init__(self, method: str, sequence: LiveSequence) -> None:
        self.method, self._prompt = method, len(sequence.prompt)
        self.stats = RecordedStats(prompt_tokens=self._prompt)
        self._sequence = sequence
        self._acceptance = RecordedAcceptance(sequence.acceptance)
        sequence.stats, sequence.acceptance = self.stats, self._acceptance

    @property
    def places(self) -> int:
        """Of its drafter's largest tree, the nodes below the root."""
        return self._sequence.sizes()[-1].nodes

    @property
    def decisions(self) -> Sequence[tuple[Tree, Sequence[int]]]:
        """Of every pass, the tree and its accepted nodes, the root first."""
        return self._acceptance.decisions

    @cached_property
    def passes(self) -> list[DraftedPass]:
        """What every pass drafted and accepted."""
        found, past = [], self._prompt - 1
        for tree, path in self._acceptance.decisions:
            ranks = _rank_paths(tree)
            found.append(DraftedPass(past=past, drafts=ranks[1:], accepted=ranks[path[-1]]))
            past += len(path)
        return found

    @cached_property
    def spans(self) -> list[list[Span]]:
        """The spans of every pass: its tree is sized, drafted, verified, and what is learned from it is part of it."""
        spans = [span for span in self.stats.spans if span.phase != "prefill"]
        begins = [place - 2 for place, span in enumerate(spans) if span.phase == "verify"]
        return [spans[begin:end] for begin, end in zip(begins, [*begins[1:], len(spans)], strict=True)]

    @property
    def prefill(self) -> list[Span]:
        """When the prompt was read."""
        return [span for span in self.stats.spans if span.phase == "prefill"]


def _rank_paths(tree: Tree) -> list[RankPath]:
    """Every node by the places among siblings on the way to it: drafters insert the likelier of two siblings first."""
    paths: list[RankPath] = [()] * len(tree)
    for parent in range(ROOT, len(tree)):
        for rank, child in enumerate(tree.topology.children[parent]):
            paths[child] = (*paths[parent], rank)
    return paths
