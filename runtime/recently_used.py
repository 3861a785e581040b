"""A few things that are kept for being used again."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["RecentlyUsed"]

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class RecentlyUsed(Generic[Key, Value]):
    """Values by key, of which the least recently used makes room for a new one.

    Attributes:
        kept: What is kept, the least recently used first.

    Args:
        limit: How many are kept at the most.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.kept: OrderedDict[Key, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self.kept)

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """The key's value; made where none is kept."""
        if key in self.kept:
            self.kept.move_to_end(key)
            return self.kept[key]
        if len(self.kept) >= self._limit:
            self.kept.popitem(last=False)
        self.kept[key] = make()
        return self.kept[key]

    def clear(self) -> None:
        """Keep none of them longer."""
        self.kept.clear()
