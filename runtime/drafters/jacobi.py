"""Jacobi decoding: the target's own answers to a chain of guesses are the next guesses."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spec_trt.runtime.accept import emitted_tokens
from spec_trt.runtime.allowance import UNLIMITED, Allowance, Size, sizes_up_to
from spec_trt.runtime.drafters.hit_rates import HitRates
from spec_trt.runtime.drafters.ngram import NgramIndex
from spec_trt.runtime.drafters.options import check_integer
from spec_trt.runtime.tree import ROOT, Tree, TreeBuilder

if TYPE_CHECKING:
    from spec_trt.runtime.drafters.drafter import PassOutput

__all__ = ["JacobiDrafter", "JacobiOptions"]

_REFILL_NGRAM = 3
"""Longest n-gram that a refill is looked up by."""

_ANSWER = "answer"
"""The kind of a guess that the target gave; the others' is the length of the match that they follow."""

_BELIEVED: dict[Hashable, float] = {_ANSWER: 0.1, 0: 0.02, 1: 0.1, 2: 0.25}
_BELIEVED_OTHERWISE = 0.4
"""How often guesses of a kind are right, to begin with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JacobiOptions:
    """Options of Jacobi decoding.

    One guess by default, for a CPU: later ones are accepted so seldom that they do not pay for themselves there.

    Raises:
        ConfigError: A value is out of range.
    """

    num_draft_tokens: int = field(default=1, metadata={"help": "guesses in the chain behind the newest token"})

    def __post_init__(self) -> None:
        check_integer("num_draft_tokens", self.num_draft_tokens, at_least=1)


class JacobiDrafter:
    """Jacobi decoding (Santilli et al. 2023, arXiv 2305.10427), with the verified prefix accepted.

    After a pass the argmaxes behind the accepted path are the guesses for the next one. What is
    missing at the chain's end is refilled by an n-gram continuation of text and guesses if there
    is one, else by repeating the last guess; so are the first guesses. Every pass emits at least
    one token, so n tokens take at most n passes.

    Args:
        options: The method's options.
    """

    needs: frozenset[str] = frozenset()

    def __init__(self, options: JacobiOptions) -> None:
        self._options = options
        self.start([0], None)

    def start(self, prompt: Sequence[int], out: "PassOutput | None") -> None:
        """Begin a sequence; see `Drafter.start`."""
        self._index = NgramIndex(min_ngram=1, max_ngram=_REFILL_NGRAM)
        self._index.extend(prompt)
        self._root = prompt[-1]
        self._guesses: list[int] = []
        self._kinds: list[Hashable] = []
        self._rates = HitRates(_BELIEVED, _BELIEVED_OTHERWISE)

    def sizes(self) -> Sequence[Size]:
        """Chains."""
        return [Size(nodes=nodes) for nodes in sizes_up_to(self._options.num_draft_tokens)]

    def propose(self, max_depth: int, allowance: Allowance = UNLIMITED) -> Tree:
        """The root and the chain of guesses."""
        count = min(self._options.num_draft_tokens, max_depth, allowance.nodes)
        self._refill(count)
        scores = self._rates.scores(self._kinds[:count])
        count = min(count, allowance.affordable(scores))
        builder = TreeBuilder(self._root)
        builder.add_chain(ROOT, self._guesses[:count], scores)
        return builder.build()

    def observe(self, tree: Tree, out: "PassOutput", path: Sequence[int], extra: int) -> None:
        """Take the argmaxes behind the accepted path as guesses."""
        self._rates.learn(self._kinds[: len(tree) - 1], len(path) - 1)
        self._guesses = out.argmax[len(path) :].tolist()
        self._kinds = [_ANSWER] * len(self._guesses)
        self._index.extend(emitted_tokens(tree, path, extra))
        self._root = extra

    def _refill(self, count: int) -> None:
        missing = count - len(self._guesses)
        if missing > 0:
            length, follower = self._index.match(self._guesses)
            last = self._guesses[-1] if self._guesses else self._root
            self._guesses += self._index.read(follower, missing, self._guesses) if length else [last] * missing
            self._kinds += [length] * missing
