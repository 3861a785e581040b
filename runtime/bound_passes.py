"""Passes that stay bound as long as a cache's rows lie where they lay."""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from spec_trt.runtime.kv_cache import KVCache
from spec_trt.runtime.recently_used import RecentlyUsed

__all__ = ["BoundPasses"]

Size = TypeVar("Size", bound=Hashable)
Pass = TypeVar("Pass")


class BoundPasses(Generic[Size, Pass]):
    """Passes of all sizes, bound to one cache: each once for every batch and capacity that its buffer has.

    Attributes:
        kept: By size, the cache's batch and its capacity.

    Args:
        cache: The cache.
        limit: How many are kept at the most; the least recently used makes room.
    """

    def __init__(self, cache: KVCache, limit: int) -> None:
        self._cache, self._memory = cache, cache.memory
        self._recent = RecentlyUsed[tuple[Size, int, int], Pass](limit)
        self.kept = self._recent.kept

    def get(self, size: Size, bind: Callable[[Size], Pass]) -> Pass:
        """The pass of a size; bound where none is kept."""
        self.forget_moved()
        return self._recent.get((size, self._cache.batch, self._cache.capacity), lambda: bind(size))

    def forget_moved(self) -> None:
        """Let go of what is bound to memory that the cache has left."""
        if self._memory is not self._cache.memory:
            self._recent.clear()
            self._memory = self._cache.memory
