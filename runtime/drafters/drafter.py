"""What a speculative method is: something that proposes trees and learns from the passes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from spec_trt.runtime.allowance import UNLIMITED, Allowance, Size
from spec_trt.runtime.tree import Tree

__all__ = ["Drafter", "PassOutput"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassOutput:
    """What one verify pass says about one sequence's tree.

    Attributes:
        argmax: [nodes] int64: the target's greedy next token after every node, accepted or not.
        tensors: Further outputs of the base graph for these nodes, by name, as the drafter's and the acceptance
            rule's `needs` asked for them: logits [nodes, vocab], a tensor; hidden_states [nodes, hidden] and
            features.{i} [nodes, hidden], behind a verify pass as `on_host` has them.
        lasting: Whether hidden states and features stay as they are; or else the next pass overwrites them, as it does
            logits.
    """

    argmax: NDArray[np.int64]
    tensors: dict[str, Any] = field(default_factory=dict)
    lasting: bool = False


class Drafter(Protocol):
    """Proposes a token tree per step. Its state belongs to one sequence, begun by `start`."""

    needs: frozenset[str]
    """Outputs of the base graph, beyond `argmax`, that `start` and `observe` read."""

    def start(self, prompt: Sequence[int], out: PassOutput | None) -> None:
        """Begin a sequence, forgetting the last one.

        Args:
            prompt: All prompt tokens; the last one is the first root.
            out: Outputs of the last tokens of `prompt[:-1]`, or None when nothing was needed of them. They are of all
                tokens, but for those whose rows an earlier sequence left in the caches.
        """

    def propose(self, max_depth: int, allowance: Allowance = UNLIMITED) -> Tree:
        """Draft a tree under the newest token.

        Args:
            max_depth: Depth of the deepest node allowed, at least 0.
            allowance: What the tree may have.
        """

    def sizes(self) -> Sequence[Size]:
        """The sizes of tree worth choosing among, smallest first, the root alone being the first."""

    def observe(self, tree: Tree, out: PassOutput, path: Sequence[int], extra: int) -> None:
        """Learn from a pass: `path` is the accepted nodes from the root on, `extra` the new root's token."""
