"""A target without a model: the next token is a function of the prefix."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from spec_trt.runtime.accept import accept_greedy, emitted_tokens
from spec_trt.runtime.drafters.drafter import Drafter, PassOutput
from spec_trt.runtime.tree import Tree
from tests.runtime.fake_session import text_features


@dataclass(frozen=True, kw_only=True)
class FakeTarget:
    """Greedy next tokens from the last `order` tokens; `period` > 0 makes most of the text repeat.

    With a period the next token is the one `period` tokens ago, except where a hash says otherwise.
    """

    vocab: int
    order: int
    seed: int = 0
    period: int = 0

    def next_token(self, prefix: Sequence[int]) -> int:
        digest = hash((self.seed, *prefix[-self.order :]))
        if 0 < self.period <= len(prefix) and digest % 8:
            return prefix[-self.period]
        return digest // 8 % self.vocab

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        text = list(prompt)
        for _ in range(count):
            text.append(self.next_token(text))
        return text[len(prompt) :]

    def logits(self, prefix: Sequence[int]) -> NDArray[np.float32]:
        """[vocab]: noise from the last `order` tokens, and most often the next token on top."""
        digest = hash((self.seed, *prefix[-self.order :])) % 2**32
        scores = np.random.default_rng(digest).standard_normal(self.vocab).astype(np.float32)
        scores[self.next_token(prefix)] += 2
        return scores

    def argmax(self, text: Sequence[int], tree: Tree) -> NDArray[np.int64]:
        """[nodes] int64: each node's next token, from its own path."""
        paths = [tree.tokens[tree.path(node)].tolist() for node in range(len(tree))]
        return np.array([self.next_token([*text[:-1], *path]) for path in paths], dtype=np.int64)


@dataclass
class Run:
    """What a speculative generation proposed and emitted, pass by pass."""

    trees: list[Tree] = field(default_factory=list)
    blocks: list[list[int]] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return [token for block in self.blocks for token in block]


def speculate(drafter: Drafter, target: FakeTarget, prompt: Sequence[int], count: int) -> Run:
    """Generate `count` tokens, checking what holds for every drafter's trees."""
    run, text = Run(), list(prompt)
    prefilled = prompt[:-1] if drafter.needs else []
    drafter.start(prompt, _output([], prefilled) if prefilled else None)
    while (remaining := count - len(run.tokens)) > 0:
        tree = drafter.propose(remaining - 1)
        assert tree.tokens[0] == text[-1]
        assert tree.depths.max() <= remaining - 1
        argmax = target.argmax(text, tree)
        path, extra = accept_greedy(tree, argmax)
        drafter.observe(tree, _output(argmax, tree.tokens), path, extra)
        run.trees.append(tree)
        run.blocks.append(emitted_tokens(tree, path, extra))
        text += run.blocks[-1]
    return run


def _output(argmax: Sequence[int] | NDArray[np.int64], tokens: Sequence[int] | NDArray[np.int64]) -> PassOutput:
    return PassOutput(
        argmax=np.asarray(argmax, dtype=np.int64), tensors=text_features([int(token) for token in tokens])
    )
