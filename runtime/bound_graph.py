"""A graph tied to tensors, and the host's own sight of the small ones."""

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from spec_trt.runtime.session import Session

__all__ = ["BoundGraph"]


class BoundGraph:
    """A graph bound for passes of one size.

    On a CPU the host's arrays are the bound tensors' own memory; elsewhere `run` copies them.

    Attributes:
        inputs: What the host writes before a run, by name.
        outputs: What it reads after one; the next run overwrites it.

    Args:
        session: The graph.
        written: Inputs that the host writes.
        read: Outputs that it reads.
        inputs: Inputs that stay where the session runs: caches, features.
        outputs: Outputs that do.
    """

    def __init__(
        self,
        session: Session,
        *,
        written: Mapping[str, Tensor],
        read: Mapping[str, Tensor],
        inputs: Mapping[str, Tensor],
        outputs: Mapping[str, Tensor],
    ) -> None:
        self._binding = session.bind({**written, **inputs}, {**read, **outputs})
        self.inputs: dict[str, NDArray[Any]] = {name: tensor.cpu().numpy() for name, tensor in written.items()}
        self.outputs: dict[str, NDArray[Any]] = {name: tensor.cpu().numpy() for name, tensor in read.items()}
        self._on_cpu = session.device.type == "cpu"
        self._written, self._read = dict(written), dict(read)

    def run(self) -> None:
        """Run the graph once; see `Binding.run`."""
        if self._on_cpu:
            self._binding.run()
            return
        for name, array in self.inputs.items():
            self._written[name].copy_(torch.from_numpy(array))
        self._binding.run()
        for name, array in self.outputs.items():
            torch.from_numpy(array).copy_(self._read[name])
