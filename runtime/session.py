"""What a back end is to the runtime: something that runs a compiled graph on tensors it is handed."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["Binding", "Session"]


class Binding(Protocol):
    """A graph tied to its tensors: the contents may change between runs, the tensors may not."""

    def run(self) -> None:
        """Run the graph once: read the bound inputs, fill the bound outputs.

        On a GPU this is in order with the current CUDA stream, and may return before it is done.

        Raises:
            BackendError: The library failed.
        """


class Session(Protocol):
    """One compiled graph, loaded."""

    device: torch.device
    """Where the tensors handed to `bind` live."""

    def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> Binding:
        """Tie the graph to contiguous tensors by address, copying nothing.

        Args:
            inputs: Every input of the graph.
            outputs: The outputs that are wanted; others are computed, if they must be, and dropped.

        Raises:
            BackendError: A name, a type or a device does not fit the graph.
        """
