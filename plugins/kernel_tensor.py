"""A tensor that someone else holds on the GPU: an address, a type and a shape, as much as a kernel needs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

__all__ = ["DeviceTensor", "KernelTensor"]


class KernelTensor(Protocol):
    """What Triton and `launch` read of a tensor: PyTorch's own, or a `DeviceTensor`."""

    @property
    def dtype(self) -> torch.dtype:
        """The elements' type."""

    @property
    def shape(self) -> Sequence[int]:
        """The sizes of the axes."""

    def data_ptr(self) -> int:
        """The address of the first element."""

    def stride(self, dim: int, /) -> int:
        """Elements from one index of an axis to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTensor:
    """A contiguous tensor at an address.

    Attributes:
        address: Where it begins, on the GPU.
        dtype: The elements' type.
        shape: The sizes of its axes.
    """

    address: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes from the first element to behind the last."""
        return math.prod(self.shape) * self.dtype.itemsize

    def data_ptr(self) -> int:
        """The address, by the name that Triton asks for."""
        return self.address

    def stride(self, dim: int, /) -> int:
        """Elements from one index of an axis to the next."""
        return math.prod(self.shape[dim:][1:])
