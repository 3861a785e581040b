"""What a TensorRT engine says of its tensors, in PyTorch's terms, and whether what is to be bound fits it."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from spec_trt import names
from spec_trt.errors import BackendError
from spec_trt.runtime.shape_profiles import Profile, Shape

__all__ = ["EngineTensor", "check_tensors", "read_profiles", "read_tensors", "torch_type"]

_ALIGNMENT = 256
"""Bytes: of the addresses that both libraries ask for, and do not check."""

_TYPES = {
    "FLOAT": torch.float32,
    "HALF": torch.float16,
    "BF16": torch.bfloat16,
    "INT64": torch.int64,
    "INT32": torch.int32,
    "BOOL": torch.bool,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTensor:
    """One input or output of an engine."""

    name: str
    dtype: torch.dtype
    is_input: bool


def torch_type(name: str) -> torch.dtype:
    """PyTorch's name for a type of TensorRT's.

    Raises:
        BackendError: The runtime has no such tensors.
    """
    if name not in _TYPES:
        raise BackendError(f"the engine has a tensor of type {name}, expected one of {', '.join(_TYPES)}: build again")
    return _TYPES[name]


def read_tensors(library: ModuleType, engine: Any) -> dict[str, EngineTensor]:  # noqa: ANN401 - the library has no types
    """All inputs and outputs, by name.

    Args:
        library: `tensorrt` or `tensorrt_rtx`.
        engine: Its `ICudaEngine`.
    """
    found = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    return {
        name: EngineTensor(
            name=name,
            dtype=torch_type(engine.get_tensor_dtype(name).name),
            is_input=engine.get_tensor_mode(name) == library.TensorIOMode.INPUT,
        )
        for name in found
    }


def read_profiles(engine: Any, inputs: list[str]) -> list[Profile]:  # noqa: ANN401 - the library has no types
    """An engine's profiles, in its own order.

    Args:
        engine: The `ICudaEngine`.
        inputs: Its inputs.
    """
    count = engine.num_optimization_profiles
    labels = names.PROFILES if count == len(names.PROFILES) else [f"profile {index}" for index in range(count)]
    return [_read_profile(engine, inputs, index, labels[index]) for index in range(count)]


def _read_profile(engine: Any, inputs: list[str], index: int, label: str) -> Profile:  # noqa: ANN401 - as above
    shapes = {name: [tuple(dims) for dims in engine.get_tensor_profile_shape(name, index)] for name in inputs}
    return Profile(
        index=index,
        name=label,
        smallest={name: smallest for name, (smallest, _, _) in shapes.items()},
        largest={name: largest for name, (_, _, largest) in shapes.items()},
    )


def check_tensors(
    expected: Mapping[str, EngineTensor],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    device: torch.device,
) -> dict[str, Shape]:
    """Refuse tensors that an engine can't be bound to.

    Args:
        expected: The engine's tensors.
        inputs: Must be all of its inputs.
        outputs: Some of its outputs.
        device: Where they must be.

    Returns:
        The inputs' shapes.

    Raises:
        BackendError: A name, a type, a layout, an address or a device does not fit.
    """
    known = {name for name, tensor in expected.items() if tensor.is_input}
    unknown = sorted((set(inputs) ^ known) | (set(outputs) - (set(expected) - known)))
    if unknown:
        raise BackendError(f"the graph's interface differs at {', '.join(unknown)}: export and build it again")
    for name, tensor in {**inputs, **outputs}.items():
        if tensor.dtype != expected[name].dtype:
            raise BackendError(f"the engine's {name} is {expected[name].dtype}, found {tensor.dtype}: build it again")
        if not tensor.is_contiguous():
            raise BackendError(f"a bound tensor must be contiguous, found {name} with strides {tensor.stride()}")
        if tensor.device != device:
            raise BackendError(f"a bound tensor must be on {device}, found {name} on {tensor.device}")
        if beyond := tensor.data_ptr() % _ALIGNMENT:
            raise BackendError(
                f"a bound tensor must begin at a multiple of {_ALIGNMENT} bytes, found {name} {beyond} behind one"
            )
    return {name: tuple(tensor.shape) for name, tensor in inputs.items()}
