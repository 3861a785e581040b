"""ONNX Runtime as a session: the CPU by default, CUDA where its provider is present."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spec_trt.errors import BackendError
from spec_trt.ort import first_line, open_session

__all__ = ["OrtBinding", "OrtSession"]

_PROVIDERS = {"cpu": ["CPUExecutionProvider"], "cuda": ["CUDAExecutionProvider", "CPUExecutionProvider"]}

_ELEMENT_TYPES = {
    torch.float32: np.float32,
    torch.float16: np.float16,
    torch.bfloat16: 16,  # onnx.TensorProto.BFLOAT16: NumPy has no such type
    torch.int64: np.int64,
    torch.bool: np.bool_,
}


class OrtSession:
    """A graph run by ONNX Runtime's IOBinding on torch tensors.

    Args:
        path: The ONNX file.
        device: `cpu`, or `cuda` with the CUDA execution provider installed.
        threads: Threads inside one operator; ONNX Runtime's choice (the cores) when None.
        profile_prefix: Where ONNX Runtime's profile goes, when one is wanted; see `end_profiling`.

    Raises:
        BackendError: ONNX Runtime is not installed, has no provider for the device, or refuses the file.
    """

    def __init__(
        self, path: Path, *, device: str = "cpu", threads: int | None = None, profile_prefix: Path | None = None
    ) -> None:
        self.device = torch.device(device)
        self._session = open_session(
            path, providers=_PROVIDERS[self.device.type], threads=threads, profile_prefix=profile_prefix
        )
        self._inputs = {item.name for item in self._session.get_inputs()}
        self._outputs = {item.name for item in self._session.get_outputs()}

    def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> "OrtBinding":
        """Tie the graph to tensors; see `Session.bind`."""
        unknown = sorted((set(inputs) ^ self._inputs) | (set(outputs) - self._outputs))
        if unknown:
            raise BackendError(f"the graph's interface differs at {', '.join(unknown)}: export and build it again")
        return OrtBinding(self._session, inputs, outputs)

    def end_profiling(self) -> Path:
        """Write the profile of all runs so far, and say where it is."""
        return Path(self._session.end_profiling())


class OrtBinding:
    """A filled `IOBinding`, keeping its tensors alive."""

    def __init__(self, session: Any, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:  # noqa: ANN401 - onnxruntime has no types
        self._session = session
        self._tensors = [*inputs.values(), *outputs.values()]
        self._on_gpu = any(tensor.is_cuda for tensor in self._tensors)
        self._io = session.io_binding()
        for name, tensor in inputs.items():
            self._io.bind_input(name, *_address(tensor))
        for name, tensor in outputs.items():
            self._io.bind_output(name, *_address(tensor))

    def run(self) -> None:
        """Run the graph; see `Binding.run`. On a GPU, ONNX Runtime's own stream waits for no other."""
        if self._on_gpu:
            torch.cuda.current_stream().synchronize()
        try:
            self._session.run_with_iobinding(self._io)
        except Exception as error:  # ONNX Runtime raises its own, unrelated types
            raise BackendError(f"ONNX Runtime failed: {first_line(error)}") from error


def _address(tensor: Tensor) -> tuple[str, int, Any, list[int], int]:
    """What IOBinding wants to know of a tensor; an empty one still needs an address."""
    if not tensor.is_contiguous():
        raise BackendError(f"a bound tensor must be contiguous, found strides {tensor.stride()}")
    pointer = tensor.data_ptr() or tensor.untyped_storage().data_ptr() or _EMPTY.data_ptr()
    return (
        tensor.device.type,
        tensor.device.index or 0,
        _ELEMENT_TYPES[tensor.dtype],
        list(tensor.shape),
        pointer,
    )


_EMPTY = torch.zeros(1)
