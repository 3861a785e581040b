"""Plain decoding: no drafts, one token per pass."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spec_trt.runtime.allowance import UNLIMITED, Allowance, Size
from spec_trt.runtime.tree import Tree, root_alone

if TYPE_CHECKING:
    from spec_trt.runtime.drafters.drafter import PassOutput

__all__ = ["AutoregressiveDrafter", "AutoregressiveOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoregressiveOptions:
    """Plain decoding has no options."""


class AutoregressiveDrafter:
    """Proposes the root alone."""

    needs: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self._root = 0

    def start(self, prompt: Sequence[int], out: "PassOutput | None") -> None:
        """Begin a sequence; see `Drafter.start`."""
        self._root = prompt[-1]

    def sizes(self) -> Sequence[Size]:
        """The root alone."""
        return (Size(nodes=0),)

    def propose(self, max_depth: int, allowance: Allowance = UNLIMITED) -> Tree:
        """The root alone."""
        return root_alone(self._root)

    def observe(self, tree: Tree, out: "PassOutput", path: Sequence[int], extra: int) -> None:
        """The extra token is the next root."""
        self._root = extra
