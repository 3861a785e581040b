"""Memory on the CPU that is as particular as a GPU's: aligned, bounded, and gone once it is freed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map_only

ALIGNMENT = 256


@dataclass(frozen=True)
class Allocation:
    """Where a tensor's memory is, and whether it still is."""

    start: int
    end: int
    storage: StorageWeakRef

    @property
    def is_freed(self) -> bool:
        return bool(self.storage.expired())


class DeviceMemory(TorchDispatchMode):
    """While active, what PyTorch allocates begins where CUDA's allocations do, and is known by address."""

    def __init__(self) -> None:
        super().__init__()
        self._allocations: list[Allocation] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = {one.untyped_storage().data_ptr() for one in tree_iter((args, kwargs)) if isinstance(one, torch.Tensor)}
        if function is torch.ops.aten.lift_fresh.default:  # what `torch.tensor` has just made
            given = set()
        return tree_map_only(
            torch.Tensor,
            lambda found: found if found.untyped_storage().data_ptr() in given else self._place(found),
            function(*args, **kwargs or {}),
        )

    def allocation(self, address: int, size: int) -> Allocation:
        """What holds some bytes.

        Raises:
            AssertionError: Nothing does: on a GPU, an illegal memory access.
        """
        self._allocations = [one for one in self._allocations if not one.is_freed]
        found = [one for one in self._allocations if one.start <= address and address + size <= one.end]
        assert found, f"an illegal memory access: {size} bytes at {address:#x}"
        return found[0]

    def _place(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type != "cpu" or not tensor.numel():
            return tensor
        size = tensor.untyped_storage().nbytes()
        room = torch.empty(size + ALIGNMENT, dtype=torch.uint8)
        start = -room.data_ptr() % ALIGNMENT
        numbers = room[start : start + size].view(tensor.dtype)
        placed = numbers.as_strided(tensor.shape, tensor.stride(), numbers.storage_offset()).copy_(tensor)
        address = placed.data_ptr()
        self._allocations.append(Allocation(address, address + size, StorageWeakRef(room.untyped_storage())))
        return placed
