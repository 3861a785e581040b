"""A graph tied to tensors, and the host's own sight of the small ones."""

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from spec_trt.runtime.session import Session
from spec_trt.runtime.staging import Staging

__all__ = ["BoundGraph"]


class BoundGraph:
    """A graph bound for passes of one size.

    On a CPU the host's arrays are the bound tensors' own memory. Elsewhere all that is written goes up in one copy,
    all that is read comes down in one, and the host waits once.

    Attributes:
        inputs: What the host writes before a run, by name.
        outputs: What it reads after one; the next run overwrites it.

    Args:
        session: The graph.
        written: Inputs that the host writes; elsewhere than on a CPU they only say what to begin with.
        read: Outputs that it reads; likewise.
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
        self._staged: _Staged | None = None
        if session.device.type == "cpu":
            self.inputs: dict[str, NDArray[Any]] = {name: tensor.numpy() for name, tensor in written.items()}
            self.outputs: dict[str, NDArray[Any]] = {name: tensor.numpy() for name, tensor in read.items()}
        else:
            self._staged = _Staged(written, read, session.device)
            written, read = self._staged.up.tensors, self._staged.down.tensors
            self.inputs, self.outputs = self._staged.up.arrays, self._staged.down.arrays
        self._binding = session.bind({**written, **inputs}, {**read, **outputs})

    def run(self) -> None:
        """Run the graph once; see `Binding.run`."""
        if self._staged is None:
            self._binding.run()
            return
        self._staged.up.upload()
        self._binding.run()
        self._staged.finish()


class _Staged:
    """What goes up before a run, and what comes down after it."""

    def __init__(self, written: Mapping[str, Tensor], read: Mapping[str, Tensor], device: torch.device) -> None:
        self.up, self.down = Staging(written, device), Staging(read, device)
        self._device = device

    def finish(self) -> None:
        """Bring the outputs down; then the host may read them, and write the next inputs."""
        self.down.download()
        if self.up.arrays or self.down.arrays:
            torch.cuda.current_stream(self._device).synchronize()
