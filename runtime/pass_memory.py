"""Memory that passes of all sizes fill in turn."""

from torch import Tensor

__all__ = ["PassMemory"]


class PassMemory:
    """A block whose beginning is handed out again and again, so that many pass sizes take no more than the largest.

    It grows by doubling: what was handed out earlier stays where it is, and all of it together is at most twice the
    newest block. A block begins as zeros: what no pass has filled may be read, by rows that do not count.

    Args:
        like: What it holds, and where; its size does not matter.
    """

    def __init__(self, like: Tensor) -> None:
        self._block = like.new_empty(0)

    def take(self, count: int) -> Tensor:
        """The block's first numbers, [count]; another pass that takes some overwrites them."""
        if count > len(self._block):
            self._block = self._block.new_zeros(1 << (count - 1).bit_length())
        return self._block[:count]
