"""What a static tree would have gained in generations that are over."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from spec_trt.tune.attempt import Attempt, RankPath
from spec_trt.tune.trace import Trace

__all__ = ["Replay", "replay"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The passes that a tree would have taken.

    Attributes:
        begun: What became of a wider tree where each pass would have begun.
        tokens: That they would have emitted.
    """

    begun: Sequence[Attempt]
    tokens: int

    @property
    def accept_length(self) -> float:
        """Tokens per pass."""
        return self.tokens / len(self.begun)


def replay(traces: Sequence[Trace], tree: Collection[Sequence[int]]) -> Replay:
    """Take the passes of a tree: what it drafts depends on the text before alone, and the text not on what is drafted.

    Args:
        traces: Generations in which every pass drafted this tree or a wider one.
        tree: Paths of ranks.
    """
    nodes = {tuple(path) for path in tree}
    begun = [attempt for trace in traces for attempt in _passes(trace.attempts, nodes)]
    return Replay(begun=begun, tokens=sum(len(trace.attempts) for trace in traces))


def _passes(attempts: Sequence[Attempt], tree: Collection[RankPath]) -> Iterator[Attempt]:
    """The positions at which a pass begins: behind all that the last one emits."""
    position = 0
    while position < len(attempts):
        yield attempts[position]
        position += 1 + _accepted(attempts[position].ranks, tree)


def _accepted(ranks: RankPath, tree: Collection[RankPath]) -> int:
    """How many drafts of the tree are accepted."""
    return next((depth for depth in range(len(ranks)) if ranks[: depth + 1] not in tree), len(ranks))
