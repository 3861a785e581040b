"""Triton and the GPU it drives, reached through one place: whether they are there, and how a kernel starts."""

import importlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from spec_trt.errors import BackendError

__all__ = ["Gpu", "find_gpu", "import_kernel", "start_kernel"]

# What the interpreter plays: a small GPU, so that little work is split already.
_INTERPRETED = {"capability": 80, "multiprocessors": 2}

_STARTING = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """The device that a kernel is started on.

    Attributes:
        capability: Compute capability, 89 for 8.9.
        multiprocessors: Their count.
        interpreted: Whether Triton's interpreter stands in for it.
    """

    capability: int
    multiprocessors: int
    interpreted: bool = False


def import_kernel(module: str) -> ModuleType:
    """Import a module of Triton kernels.

    Raises:
        BackendError: Triton is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BackendError("Triton is not installed: `pip install 'spec-trt[trt]'` or `'spec-trt[trt-rtx]'`") from error


def start_kernel(
    kernel: Any,  # noqa: ANN401 - Triton's, which has no types
    grid: Sequence[int],
    operands: Sequence[Any],
    constants: Mapping[str, Any],
) -> None:
    """Start a kernel on PyTorch's current stream, in one thread at a time.

    One that is new is compiled first, for which Triton parses its source, and Python 3.11 fails at that in two threads
    at once (python/cpython issue 106905).

    Args:
        kernel: The function that `triton.jit` made.
        grid: Programs, along up to three axes.
        operands: Its arguments.
        constants: What it is compiled for, by name, and Triton's options.
    """
    with _STARTING:
        kernel[tuple(grid)](*operands, **constants)


def find_gpu(device: torch.device | None = None) -> Gpu:
    """Say what a kernel on this device runs on.

    Args:
        device: The tensors' own; PyTorch's current GPU when None.

    Raises:
        BackendError: It is no NVIDIA GPU, and Triton's interpreter is not asked for.
    """
    device = device or torch.device("cuda")
    if device.type == "cuda" and torch.cuda.is_available():
        found = torch.cuda.get_device_properties(device)
        return Gpu(capability=10 * found.major + found.minor, multiprocessors=found.multi_processor_count)
    if device.type == "cpu" and bool(import_kernel("triton").knobs.runtime.interpret):
        return Gpu(**_INTERPRETED, interpreted=True)
    raise BackendError(
        f"the plugins' kernels need an NVIDIA GPU, found {device}: run on a machine with one, or on `ort`"
    )
