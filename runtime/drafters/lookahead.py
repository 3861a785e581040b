"""Lookahead decoding: a window of parallel Jacobi trajectories that feeds a pool of n-grams."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import TYPE_CHECKING

from spec_trt.runtime.accept import emitted_tokens
from spec_trt.runtime.allowance import UNLIMITED, Allowance, Size, sizes_up_to
from spec_trt.runtime.drafters.options import check_flag, check_integer
from spec_trt.runtime.tree import ROOT, Tree, TreeBuilder

if TYPE_CHECKING:
    from spec_trt.runtime.drafters.drafter import PassOutput

__all__ = ["GramPool", "LookaheadDrafter", "LookaheadOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LookaheadOptions:
    """Options of Lookahead decoding; a pass has at most (ngram_size - 1)(window + guesses) tokens.

    The defaults are small, for a CPU: larger windows accept little more and cost much more there.

    Raises:
        ConfigError: A value is out of range.
    """

    window: int = field(default=3, metadata={"help": "columns of the window (W)"})
    ngram_size: int = field(default=3, metadata={"help": "tokens of a pooled n-gram (N)"})
    guesses: int = field(default=3, metadata={"help": "n-grams kept and tried per first token (G)"})
    seed_pool: bool = field(
        default=True, metadata={"help": "seed the pool from the prompt's n-grams and add generated ones"}
    )
    seed: int = field(default=0, metadata={"help": "seed of the draws that fill the first window"})

    def __post_init__(self) -> None:
        check_integer("window", self.window, at_least=1)
        check_integer("ngram_size", self.ngram_size, at_least=2)
        check_integer("guesses", self.guesses, at_least=1)
        check_flag("seed_pool", self.seed_pool)
        check_integer("seed", self.seed, at_least=0)


class GramPool:
    """The newest n-grams of each first token, and whether the text has them; a repeated one becomes the newest.

    Args:
        capacity: How many n-grams are kept per first token.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._tails: dict[int, dict[tuple[int, ...], bool]] = {}

    def add(self, gram: Sequence[int], *, of_text: bool) -> None:
        """Keep an n-gram, dropping the oldest one with its first token if there are too many."""
        tails = self._tails.setdefault(gram[0], {})
        tail = tuple(gram[1:])
        tails[tail] = tails.pop(tail, False) or of_text
        if len(tails) > self._capacity:
            del tails[next(iter(tails))]

    def tails(self, token: int) -> list[tuple[tuple[int, ...], bool]]:
        """What the n-grams that begin with `token` continue with, the oldest first, and whether the text has it."""
        return list(self._tails.get(token, {}).items())


class LookaheadDrafter:
    """Lookahead decoding (Fu et al. 2024, arXiv 2402.02057) on a plain tree.

    `_levels` is the window: level l, column j holds the token after (l - 1, j); level 0 is a chain
    from the root, its column 0. So a cell's depth is l + j, and tree and mask are ancestors only.
    Cells are inserted as into a trie: cells with equal paths share a node and its argmax.

    Level 0 starts as tokens drawn from the prompt, ngram_size - 2 columns too wide. Each pass
    that fills the window appends the last level's argmaxes as a level and drops the first column
    of every level; once there are ngram_size - 1 levels, each pass drops level 0 instead. Column 0
    of level 0 is always the newest token. Cells that would be EOS are drawn from the prompt.

    Args:
        options: The method's options.
        vocab: Size of the vocabulary.
        eos_ids: Tokens that the window never holds.
    """

    needs: frozenset[str] = frozenset()

    def __init__(self, options: LookaheadOptions, *, vocab: int, eos_ids: frozenset[int]) -> None:
        self._options = options
        self._eos_ids = eos_ids
        self._fallback = next((token for token in range(vocab) if token not in eos_ids), 0)
        self.start([0], None)

    def start(self, prompt: Sequence[int], out: "PassOutput | None") -> None:
        """Begin a sequence with an empty window and pool; see `Drafter.start`."""
        self._random = Random(self._options.seed)
        self._draws = [token for token in prompt if token not in self._eos_ids] or [self._fallback]
        self._levels = [[prompt[-1], *(self._draw() for _ in range(self._window_depth))]]
        self._last_level_nodes: list[int] = []
        self._pool = GramPool(self._options.guesses)
        self._newest: list[int] = []
        self._pool_text(prompt)

    def sizes(self) -> Sequence[Size]:
        """The text's guesses alone, or all of the window and its guesses too: it moves only as a whole."""
        return [
            Size(nodes=nodes) for nodes in (*sizes_up_to(self._guess_nodes), 2 * self._guess_nodes + self._window_nodes)
        ]

    def propose(self, max_depth: int, allowance: Allowance = UNLIMITED) -> Tree:
        """The window and, once it is full, the pool's guesses under the root.

        Where the window would be too deep the sequence is nearly at its end: guesses alone. So too where it would be
        too large.
        """
        builder = TreeBuilder(self._levels[0][0])
        has_room = max_depth >= self._window_depth and allowance.nodes >= max(self._window_nodes, self._guess_nodes + 1)
        self._last_level_nodes = self._add_window(builder) if has_room else []
        of_window = count(self._guess_nodes)
        if self._is_full or not has_room:
            self._add_guesses(builder, max_depth, allowance.nodes, of_window)
        for node in range(1, len(builder)):
            builder.places.setdefault(node, next(of_window))
        return builder.build()

    def observe(self, tree: Tree, out: "PassOutput", path: Sequence[int], extra: int) -> None:
        """Move the window on by one, if it was in the tree, and pool what the pass showed."""
        if self._last_level_nodes:
            self._shift(out.argmax[self._last_level_nodes].tolist())
        self._levels[0][0] = extra
        self._pool_text(emitted_tokens(tree, path, extra))

    @property
    def _window_depth(self) -> int:
        """Depth of the window's deepest cell, the same while it fills and after."""
        return self._options.window + self._options.ngram_size - 3

    @property
    def _window_nodes(self) -> int:
        """Nodes of the window below the root at the most."""
        return self._options.ngram_size - 3 + self._options.window * (self._options.ngram_size - 1)

    @property
    def _guess_nodes(self) -> int:
        """Nodes of the guesses at the most."""
        return self._options.guesses * (self._options.ngram_size - 1)

    @property
    def _is_full(self) -> bool:
        return len(self._levels) == self._options.ngram_size - 1

    def _add_window(self, builder: TreeBuilder) -> list[int]:
        """Insert the window; the nodes of its last level's columns."""
        nodes = [ROOT, *builder.add_chain(ROOT, self._levels[0][1:])]
        for level in self._levels[1:]:
            nodes = [builder.add(parent, token) for parent, token in zip(nodes, level, strict=True)]
        return nodes

    def _add_guesses(self, builder: TreeBuilder, max_depth: int, nodes: int, of_window: Iterator[int]) -> None:
        """Insert the n-grams that begin with the root, the newest first, as far as there may be so many nodes.

        Their places come first, but for those that the window alone gives: without it they would not be there.
        """
        of_text = count()
        for tail, has_text in reversed(self._pool.tails(builder.root_token)):
            for node in builder.add_chain(ROOT, tail[: min(max_depth, nodes + 1 - len(builder))]):
                if node not in builder.places:
                    builder.places[node] = next(of_text if has_text else of_window)

    def _shift(self, argmax: list[int]) -> None:
        """Append a level, the argmaxes of the last one, and drop a column or level 0 for it."""
        level = [self._draw() if token in self._eos_ids else token for token in argmax]
        if not self._is_full:
            self._levels = [old[1:] for old in (*self._levels, level)]
            return
        for gram in zip(*self._levels, argmax, strict=True):
            self._pool.add(gram, of_text=False)
        self._levels = [*self._levels[1:], level]

    def _pool_text(self, tokens: Sequence[int]) -> None:
        """Pool the n-grams that new tokens of the text complete."""
        if not self._options.seed_pool:
            return
        size = self._options.ngram_size
        text = [*self._newest, *tokens]
        for index in range(len(text) - size + 1):
            self._pool.add(text[index : index + size], of_text=True)
        self._newest = text[-(size - 1) :]

    def _draw(self) -> int:
        return self._random.choice(self._draws)
