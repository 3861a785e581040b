"""Rows to take out of a tensor, named where the tensor lives."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from spec_trt.runtime.staging import Staging

__all__ = ["RowIndex"]

_ROWS = "rows"


class RowIndex:
    """An index for tensors on a device, put up by a copy that the host does not wait for.

    A list that indexes a tensor on a GPU would be copied from ordinary memory, for which the host waits.

    Args:
        most: Rows that are taken at once at the most.
        device: The tensors'.
    """

    def __init__(self, most: int, device: torch.device) -> None:
        self._staged = None
        if device.type != "cpu":
            self._staged = Staging({_ROWS: torch.zeros(most, dtype=torch.int64)}, device)

    def on_device(self, rows: Sequence[int] | NDArray[np.int64]) -> Any:  # noqa: ANN401 - what indexes an array or a tensor
        """What takes these rows, in their order.

        The host's side is read until the current stream has come to the copy: wait for it before the next call.

        Args:
            rows: Their numbers.
        """
        if self._staged is None:
            return rows
        self._staged.arrays[_ROWS][: len(rows)] = rows
        self._staged.upload()
        return self._staged.tensors[_ROWS][: len(rows)]
