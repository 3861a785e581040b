"""The trained draft heads that an engine has, for the methods that need one."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from spec_trt.errors import ConfigError

if TYPE_CHECKING:
    from spec_trt.runtime.draft_model import DraftModel
    from spec_trt.runtime.medusa_model import MedusaModel

__all__ = ["HeadName", "Heads"]

Head = TypeVar("Head")
HeadName = Literal["medusa", "eagle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """The heads, loaded; their caches belong to one sequence at a time."""

    medusa: "MedusaModel | None" = None
    eagle: "DraftModel | None" = None

    def has(self, name: HeadName) -> bool:
        """Whether the engine has a head."""
        return getattr(self, name) is not None

    def rows(self, name: HeadName) -> int | float:
        """Rows of the text that a head's own cache holds; any number where it has no cache."""
        return math.inf if name == "medusa" or self.eagle is None else int(self.eagle.cache.lengths[0])

    def backlog(self, name: HeadName) -> int:
        """Rows of the text that a head has yet to read before it drafts."""
        return self.eagle.backlog if name == "eagle" and self.eagle is not None else 0

    def forget(self) -> None:
        """Let go of what the text that has ended would have needed."""
        if self.eagle is not None:
            self.eagle.forget()

    def cut(self, rows: int) -> None:
        """Hold no more rows of a text than so many, nor memory for many more."""
        if self.eagle is not None:
            self.eagle.cut(rows)

    def required_medusa(self) -> "MedusaModel":
        """The Medusa heads.

        Raises:
            ConfigError: There are none.
        """
        return _required(self.medusa, "Medusa heads", "--medusa")

    def required_eagle(self) -> "DraftModel":
        """The EAGLE draft model.

        Raises:
            ConfigError: There is none.
        """
        return _required(self.eagle, "an EAGLE head", "--eagle")


def _required(head: Head | None, words: str, option: str) -> Head:
    if head is None:
        raise ConfigError(
            f"this method needs {words}, the engine has none: "
            f"make it again from `spec-trt export MODEL BUNDLE {option} PATH`"
        )
    return head
