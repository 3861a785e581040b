"""The memory of caches: taken, laid out, and moved from one layout to another."""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spec_trt.huge_pages import prefer_huge_pages

__all__ = [
    "ALIGNMENT",
    "DTYPES",
    "Rows",
    "aligned",
    "copied",
    "joined_rows",
    "move_rows",
    "new_mask",
    "on_host",
    "untouched_zeros",
    "zeros",
]

Rows = Tensor | NDArray[Any]
"""Rows of a cache: a tensor, or `on_host` of one, which takes no detour through PyTorch to read."""

SomeRows = TypeVar("SomeRows", bound=Rows)

ALIGNMENT = 256
"""Bytes: of every address that TensorRT is given."""

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def zeros(size: int, like: Tensor) -> Tensor:
    """New memory, on a CPU in huge pages and filled without PyTorch's threads, which wait for busy cores."""
    storage = like.new_empty(size)
    if storage.device.type == "cpu":
        prefer_huge_pages(storage.data_ptr(), storage.nbytes)
    on_host(storage)[:] = 0
    return storage


def new_mask(*shape: int, device: torch.device) -> Tensor:
    """A mask by which nothing sees anything."""
    return zeros(math.prod(shape), torch.empty(0, dtype=torch.bool, device=device)).view(shape)


def untouched_zeros(size: int, like: Tensor) -> Tensor:
    """New memory that the system gives, page by page, as it is used."""
    if like.device.type != "cpu":
        return like.new_zeros(size)
    memory = torch.from_numpy(np.zeros(size * like.element_size(), dtype=np.uint8)).view(like.dtype)
    prefer_huge_pages(memory.data_ptr(), memory.nbytes)
    return memory


def aligned(shape: tuple[int, ...], allocate: Callable[[int], Tensor]) -> Tensor:
    """A tensor whose every section begins where TensorRT lets a tensor begin, and is contiguous from there on."""
    sections, batch, heads, rows, head_dim = shape
    section = -(-batch * heads * rows * head_dim // ALIGNMENT) * ALIGNMENT  # numbers, of a byte at the least
    strides = (section, heads * rows * head_dim, rows * head_dim, head_dim, 1)
    return allocate(sections * section).as_strided(shape, strides)


def move_rows(source: Any, target: Any, rows: int, *, before: tuple[int, ...], after: tuple[int, ...]) -> None:  # noqa: ANN401 - see `on_host`
    """Move the first rows of every head to where they lie in a buffer of another shape.

    Args:
        source: The buffer's numbers, one behind another.
        target: Where they go; may be the same memory.
        rows: How many.
        before: Shape of the buffer, [2 * layers, batch, kv_heads, capacity, head_dim].
        after: Of the target's, larger or smaller in batch and capacity.
    """
    sections, _, heads, _, head_dim = before
    batch, used = min(before[1], after[1]), rows * head_dim
    moves = [
        (
            ((section * before[1] + sequence) * heads + head) * before[3] * head_dim,
            ((section * after[1] + sequence) * heads + head) * after[3] * head_dim,
        )
        for section in range(sections)
        for sequence in range(batch)
        for head in range(heads)
    ]
    for here, there in reversed(moves) if after[1] >= before[1] and after[3] >= before[3] else moves:
        target[there : there + used] = source[here : here + used]


def on_host(tensor: Rows) -> Any:  # noqa: ANN401 - an array or a tensor: both are indexed alike
    """The same memory as a NumPy array where there is one: right after a pass its shorter way counts."""
    if isinstance(tensor, np.ndarray) or tensor.device.type != "cpu":
        return tensor
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def joined_rows(parts: Sequence[Any]) -> Any:  # noqa: ANN401 - see `on_host`
    """Rows behind one another in memory of their own: arrays as an array, tensors as a tensor; see `copied`."""
    hosted = [on_host(part) for part in parts]
    if isinstance(hosted[0], np.ndarray):
        return _as_one_was(np.concatenate(hosted), parts[0])
    return torch.cat(hosted)


def copied(rows: SomeRows) -> SomeRows:
    """The same numbers in memory of their own.

    On a CPU not by PyTorch: large copies start its own threads, which then hold a core for a fifth of a second, waiting
    for more (a pass of eight sequences took 6 % longer behind a prompt's part whose features were copied so).
    """
    hosted = on_host(rows)
    copy: SomeRows = _as_one_was(hosted.copy(), rows) if isinstance(hosted, np.ndarray) else hosted.clone()
    return copy


def _as_one_was(array: NDArray[Any], rows: Any) -> Any:  # noqa: ANN401 - see `on_host`
    """An array, as a tensor where rows were one before `on_host`."""
    return torch.from_numpy(array).view(rows.dtype) if isinstance(rows, Tensor) else array
