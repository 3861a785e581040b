"""Which drafted tokens the target agrees with."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from spec_trt.runtime.tree import ROOT, Tree

__all__ = ["accept_greedy", "emitted_tokens"]


def accept_greedy(tree: Tree, argmax: NDArray[np.int64]) -> tuple[list[int], int]:
    """The longest path that the target itself would have taken, and the token it adds.

    Walks from the root to the child whose token is the target's argmax at the current node, and
    stops where there is none; the argmax there is the extra token.

    Args:
        tree: The drafted tree.
        argmax: [nodes] int64: the target's next token after every node.

    Returns:
        The accepted nodes, the root first: the rows to commit. And the extra token, the next root.
    """
    path = [ROOT]
    while True:
        token = int(argmax[path[-1]])
        child = tree.child(path[-1], token)
        if child is None:
            return path, token
        path.append(child)


def emitted_tokens(tree: Tree, path: Sequence[int], extra: int) -> list[int]:
    """The tokens that a pass adds to the sequence: the accepted drafts and the extra token."""
    return [*(int(tree.tokens[node]) for node in path[1:]), extra]
