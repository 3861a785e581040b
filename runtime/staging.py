"""Small tensors of a pass side by side in one buffer, so that one copy moves all of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Staging", "place"]

_ALIGNMENT = 256
"""Bytes; what CUDA's own allocations have at the least."""


class Staging:
    """Copies of some tensors on the host and on a device.

    Attributes:
        arrays: The host's, by name.
        tensors: The device's, by name.

    Args:
        tensors: What the copies look like and hold at first.
        device: Where the device's copy lives.
    """

    def __init__(self, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        offsets, size = place([tensor.nbytes for tensor in tensors.values()])
        self._host = torch.zeros(size, dtype=torch.uint8, pin_memory=size > 0 and device.type == "cuda")
        self._device = torch.zeros(size, dtype=torch.uint8, device=device)
        self.arrays: dict[str, NDArray[Any]] = {}
        self.tensors: dict[str, Tensor] = {}
        for (name, tensor), offset in zip(tensors.items(), offsets, strict=True):
            ours = _view(self._host, offset, tensor)
            ours.copy_(tensor)
            self.arrays[name], self.tensors[name] = ours.numpy(), _view(self._device, offset, tensor)

    def upload(self) -> None:
        """Copy host to device, in the order of the current stream."""
        self._device.copy_(self._host, non_blocking=True)

    def download(self) -> None:
        """Copy device to host, in the order of the current stream."""
        self._host.copy_(self._device, non_blocking=True)


def place(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where pieces begin in a buffer that holds all of them aligned, and its size; all in bytes."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += -(-max(size, 1) // _ALIGNMENT) * _ALIGNMENT
    return offsets, end


def _view(buffer: Tensor, offset: int, like: Tensor) -> Tensor:
    return buffer[offset : offset + like.nbytes].view(like.dtype).view(like.shape)
