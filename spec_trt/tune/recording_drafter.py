"""A drafter that another one drafts through, to see what it would have drafted before every token of a text."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spec_trt.runtime.allowance import UNLIMITED, Allowance, Size
from spec_trt.runtime.tree import Tree, root_alone

if TYPE_CHECKING:
    from spec_trt.runtime.drafters.drafter import Drafter, PassOutput

__all__ = ["RecordingDrafter"]


class RecordingDrafter:
    """Keeps the trees of a drafter and has their roots alone verified: every pass emits one token.

    Args:
        drafter: Whose trees are kept.
        trees: Where to.
    """

    def __init__(self, drafter: "Drafter", trees: list[Tree]) -> None:
        self.needs = drafter.needs
        self._drafter, self._trees = drafter, trees

    def start(self, prompt: Sequence[int], out: "PassOutput | None") -> None:
        """Begin a sequence; see `Drafter.start`."""
        self._drafter.start(prompt, out)

    def sizes(self) -> Sequence[Size]:
        """The root alone."""
        return (Size(nodes=0),)

    def propose(self, max_depth: int, allowance: Allowance = UNLIMITED) -> Tree:  # noqa: ARG002 - all is drafted
        """The root of the tree that is kept."""
        tree = self._drafter.propose(max_depth)
        self._trees.append(tree)
        return root_alone(int(tree.tokens[0]))

    def observe(self, tree: Tree, out: "PassOutput", path: Sequence[int], extra: int) -> None:
        """Let the drafter learn from the pass."""
        self._drafter.observe(tree, out, path, extra)
