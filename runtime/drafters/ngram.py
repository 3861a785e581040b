"""Prompt lookup: the text so far, searched for its own newest tokens, continues the draft."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spec_trt.errors import ConfigError
from spec_trt.runtime.accept import emitted_tokens
from spec_trt.runtime.allowance import UNLIMITED, Allowance, Size, sizes_up_to
from spec_trt.runtime.drafters.hit_rates import HitRates
from spec_trt.runtime.drafters.options import check_integer
from spec_trt.runtime.tree import ROOT, Tree, TreeBuilder

if TYPE_CHECKING:
    from spec_trt.runtime.drafters.drafter import PassOutput

__all__ = ["NgramDrafter", "NgramIndex", "NgramOptions"]

_BELIEVED: dict[Hashable, float] = {(length, True): share for length, share in enumerate((0.15, 0.3, 0.45, 0.6), 1)}
"""By the length of a match, how often what followed it follows again, to begin with."""

_BELIEVED_BEHIND = 0.7
"""How often the next token then does too, and what followed longer matches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramOptions:
    """Options of prompt lookup.

    Raises:
        ConfigError: A value is out of range, or min_ngram exceeds max_ngram.
    """

    num_draft_tokens: int = field(
        default=8,
        metadata={"help": "tokens drafted after a match of max_ngram tokens (in proportion after a shorter one)"},
    )
    max_ngram: int = field(default=4, metadata={"help": "longest match that is looked for, in tokens"})
    min_ngram: int = field(default=2, metadata={"help": "shortest match that is drafted from, in tokens"})

    def __post_init__(self) -> None:
        check_integer("num_draft_tokens", self.num_draft_tokens, at_least=1)
        check_integer("max_ngram", self.max_ngram, at_least=1)
        check_integer("min_ngram", self.min_ngram, at_least=1)
        if self.min_ngram > self.max_ngram:
            raise ConfigError(
                f"min_ngram must not exceed max_ngram: found {self.min_ngram} and {self.max_ngram}; "
                "lower the one or raise the other"
            )


class NgramIndex:
    """A growing text, and for each of its n-grams where it last occurred before the text's end.

    A new token costs one dictionary entry per n-gram length. An n-gram is entered when a token
    follows it, so that the text's own end never finds itself.

    Args:
        min_ngram: Length of the shortest n-grams.
        max_ngram: Length of the longest n-grams.
    """

    def __init__(self, *, min_ngram: int, max_ngram: int) -> None:
        self._min_ngram = min_ngram
        self._max_ngram = max_ngram
        self._text: list[int] = []
        self._followers: dict[tuple[int, ...], int] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text."""
        for token in tokens:
            self._enter_end()
            self._text.append(token)

    def _enter_end(self) -> None:
        end = len(self._text)
        for length in range(self._min_ngram, min(self._max_ngram, end) + 1):
            self._followers[tuple(self._text[end - length :])] = end

    def match(self, guesses: Sequence[int] = ()) -> tuple[int, int]:
        """The longest end of text and guesses that occurred before, at its newest occurrence.

        Args:
            guesses: Tokens assumed to follow the text.

        Returns:
            The match's length in tokens, 0 for none, and the index of the token that followed it.
        """
        end = tuple([*self._text[-self._max_ngram :], *guesses][-self._max_ngram :])
        for length in range(len(end), self._min_ngram - 1, -1):
            follower = self._followers.get(end[-length:])
            if follower is not None:
                return length, follower
        return 0, 0

    def read(self, index: int, count: int, guesses: Sequence[int] = ()) -> list[int]:
        """The `count` tokens of text and guesses from `index` on, running on into those just read.

        So a match that is less than `count` tokens old is read as one period of a repetition.

        Args:
            index: Index of a token of the text.
            count: How many tokens to read.
            guesses: Tokens assumed to follow the text.
        """
        period = [*self._text[index : index + count], *guesses]
        return [period[number % len(period)] for number in range(count)]


class NgramDrafter:
    """Prompt lookup decoding (Saxena 2023): a chain that repeats what followed the last match.

    The longest match wins, among equal ones the newest. Long matches are more often right than
    short ones: a match of n tokens drafts n/max_ngram of num_draft_tokens, rounded up.

    Args:
        options: The method's options.
        eos_ids: Tokens after which nothing is drafted.
    """

    needs: frozenset[str] = frozenset()

    def __init__(self, options: NgramOptions, *, eos_ids: frozenset[int]) -> None:
        self._options = options
        self._eos_ids = eos_ids
        self.start([0], None)

    def start(self, prompt: Sequence[int], out: "PassOutput | None") -> None:
        """Begin a sequence; see `Drafter.start`."""
        self._index = NgramIndex(min_ngram=self._options.min_ngram, max_ngram=self._options.max_ngram)
        self._index.extend(prompt)
        self._root, self._kinds = prompt[-1], list[Hashable]()
        self._rates = HitRates(_BELIEVED, _BELIEVED_BEHIND)

    def sizes(self) -> Sequence[Size]:
        """Chains."""
        return [Size(nodes=nodes) for nodes in sizes_up_to(self._options.num_draft_tokens)]

    def propose(self, max_depth: int, allowance: Allowance = UNLIMITED) -> Tree:
        """The root and a chain; the root alone where nothing matches."""
        builder = TreeBuilder(self._root)
        self._kinds = []
        if allowance.nodes:
            self._draft(builder, min(max_depth, allowance.nodes), allowance)
        return builder.build()

    def observe(self, tree: Tree, out: "PassOutput", path: Sequence[int], extra: int) -> None:
        """Append the pass's tokens to the text."""
        self._index.extend(emitted_tokens(tree, path, extra))
        self._rates.learn(self._kinds, len(path) - 1)
        self._root = extra

    def _draft(self, builder: TreeBuilder, max_depth: int, allowance: Allowance) -> None:
        length, draft = self._found(max_depth)
        kinds: list[Hashable] = [(length, number == 0) for number in range(len(draft))]
        scores = self._rates.scores(kinds)
        count = allowance.affordable(scores)
        builder.add_chain(ROOT, draft[:count], scores)
        self._kinds = kinds[:count]

    def _found(self, max_depth: int) -> tuple[int, list[int]]:
        """The longest match's length, and what followed it, as far as the sequence's end."""
        length, follower = self._index.match()
        full, longest = self._options.num_draft_tokens, self._options.max_ngram
        wanted = -(-full * length // longest)
        draft = self._index.read(follower, min(wanted, max_depth))
        eos = next((index for index, token in enumerate(draft) if token in self._eos_ids), len(draft))
        return length, draft[: eos + 1]
