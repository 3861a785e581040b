"""Memory that passes of all sizes fill in turn."""

import math

from torch import Tensor

from spec_trt.runtime.cache_memory import zeros

__all__ = ["PassMemory", "PassRooms"]


class PassMemory:
    """A block whose beginning is handed out again and again, so that many pass sizes take no more than the largest.

    It grows by doubling: what was handed out earlier stays where it is, and all of it together is at most twice the
    newest block.

    Args:
        like: What it holds, and where; its size does not matter.
        zeroed: Whether a block begins as zeros: passes may read what none has filled.
    """

    def __init__(self, like: Tensor, *, zeroed: bool = False) -> None:
        self._block, self._zeroed = like.new_empty(0), zeroed

    def take(self, count: int) -> Tensor:
        """The block's first numbers, [count]; another pass that takes some overwrites them."""
        if count > len(self._block):
            size = 1 << (count - 1).bit_length()
            self._block = zeros(size, self._block) if self._zeroed else self._block.new_empty(size)
        return self._block[:count]


class PassRooms:
    """A `PassMemory` for each of a graph's large tensors.

    Args:
        like: What they hold, and where; its size does not matter.
    """

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._memory: dict[str, PassMemory] = {}

    def take(self, name: str, *shape: int, zeroed: bool = False) -> Tensor:
        """The beginning of a name's memory in some shape; another pass that takes some overwrites it.

        Args:
            name: The tensor's.
            shape: The pass's own.
            zeroed: See `PassMemory`; of the name's first call.
        """
        memory = self._memory.setdefault(name, PassMemory(self._like, zeroed=zeroed))
        return memory.take(math.prod(shape)).view(shape)
