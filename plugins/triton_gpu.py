"""Triton and the GPU it drives, reached through one place: whether they are there."""

import importlib
from dataclasses import dataclass
from types import ModuleType

import torch

from spec_trt.errors import BackendError

__all__ = ["Gpu", "find_gpu", "import_kernel"]

# What the interpreter plays: a small GPU, so that little work is split already.
_INTERPRETED = {"capability": 80, "multiprocessors": 2}


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
