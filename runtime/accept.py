"""Which drafted tokens the target agrees with: the rules that keep plain decoding's output, and what a rule is."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from spec_trt import names
from spec_trt.runtime.tree import ROOT, Tree

if TYPE_CHECKING:
    from spec_trt.runtime.drafters.drafter import PassOutput
    from spec_trt.runtime.sampler import Sampler

__all__ = [
    "GREEDY",
    "Acceptance",
    "GreedyAcceptance",
    "Guarantee",
    "SampledAcceptance",
    "accept_greedy",
    "emitted_tokens",
]

Guarantee = Literal["token for token", "in law", "not lossless"]
"""What an output has in common with plain decoding's, the same seed given: every token; its distribution; neither."""


class Acceptance(Protocol):
    """Decides which drafted tokens are kept, and which token the target adds. One per sequence."""

    needs: frozenset[str]
    """Outputs of the base graph, beyond `argmax`, that `accept` reads."""
    guarantee: Guarantee
    """What its output has in common with plain decoding's."""

    def accept(self, tree: Tree, out: "PassOutput") -> tuple[list[int], int]:
        """The accepted nodes, the root first: the rows to commit. And the extra token, the next root."""


class GreedyAcceptance:
    """Accepts the target's argmaxes."""

    needs: frozenset[str] = frozenset()
    guarantee: Guarantee = "token for token"

    def accept(self, tree: Tree, out: "PassOutput") -> tuple[list[int], int]:
        """See `accept_greedy`."""
        return accept_greedy(tree, out.argmax)


GREEDY = GreedyAcceptance()


class SampledAcceptance:
    """Draws the target's token at every node and follows it down the tree: for drafts that were not drawn.

    It is the law of rejection sampling from a draft that is certain (Chen et al. 2023, arXiv 2302.01318), and as a
    position's uniform depends on the position alone, the very output of plain sampling. Only visited nodes' logits
    are looked at, each with the text that it follows.

    Args:
        sampler: The sequence's; at temperature 0 it draws nothing.
    """

    needs: frozenset[str] = frozenset({names.LOGITS})
    guarantee: Guarantee = "token for token"

    def __init__(self, sampler: "Sampler") -> None:
        self._sampler = sampler

    def accept(self, tree: Tree, out: "PassOutput") -> tuple[list[int], int]:
        """See `Acceptance.accept`."""
        logits = out.tensors[names.LOGITS]
        return _follow(tree, lambda node: self._sampler.choose(logits[node]))


def accept_greedy(tree: Tree, argmax: NDArray[np.int64]) -> tuple[list[int], int]:
    """The longest path that the target itself would have taken, and the token it adds.

    Args:
        tree: The drafted tree.
        argmax: [nodes] int64: the target's next token after every node.

    Returns:
        The accepted nodes, the root first: the rows to commit. And the extra token, the next root.
    """
    return _follow(tree, lambda node: int(argmax[node]))


def _follow(tree: Tree, next_token: Callable[[int], int]) -> tuple[list[int], int]:
    """Walk from the root to the child that holds the token after the current node, until there is none."""
    path = [ROOT]
    while True:
        token = next_token(path[-1])
        child = tree.child(path[-1], token)
        if child is None:
            return path, token
        path.append(child)


def emitted_tokens(tree: Tree, path: Sequence[int], extra: int) -> list[int]:
    """The tokens that a pass adds to the sequence: the accepted drafts and the extra token."""
    return [*(int(tree.tokens[node]) for node in path[1:]), extra]
