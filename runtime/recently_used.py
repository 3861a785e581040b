"""A few things that are kept for being used again."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["RecentlyUsed"]

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class RecentlyUsed(Generic[Key, Value]):
    """Values by key, of which the least recently used makes room for a new one.

    Args:
        limit: How many are kept at the most.
        before_drop: Called before one is let go for another.
    """

    def __init__(self, limit: int, before_drop: Callable[[], None]) -> None:
        self._limit, self._before_drop = limit, before_drop
        self._kept: OrderedDict[Key, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """The key's value; made where none is kept."""
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        if len(self._kept) >= self._limit:
            self._before_drop()
            self._kept.popitem(last=False)
        self._kept[key] = make()
        return self._kept[key]

    def drop(self, key: Key) -> None:
        """Keep a key's value no longer."""
        self._kept.pop(key, None)
