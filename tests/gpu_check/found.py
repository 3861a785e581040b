"""What the machine has, and which parts of the check it can run."""

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from spec_trt.tensorrt import TENSORRT_BACKENDS

CUDA_PROVIDER = "CUDAExecutionProvider"
PARTS = ("kernels", "torch", "engines", "lossless", "speed")

_EXTRAS = {"trt": "spec-trt[trt]", "trt-rtx": "spec-trt[trt-rtx]"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A machine.

    Attributes:
        gpu: The GPU's name; None without one.
        capability: Its compute capability, as `8.9`.
        versions: Of PyTorch, its CUDA, and of each library that is installed.
        tensorrt: The back ends whose library is installed.
        providers: ONNX Runtime's execution providers.
    """

    gpu: str | None
    capability: str | None
    versions: dict[str, str] = field(default_factory=dict)
    tensorrt: Sequence[str] = ()
    providers: Sequence[str] = ()

    @property
    def lines(self) -> list[str]:
        """What was found, for people."""
        gpu = f"{self.gpu}, compute capability {self.capability}" if self.gpu else "no GPU"
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return [f"found: {gpu}", f"found: {versions}", f"found: ONNX Runtime providers {', '.join(self.providers)}"]


def find() -> Found:
    """Look around; imports no TensorRT library, of which a process can use only one."""
    has_gpu = torch.cuda.is_available()
    packages = ["triton", "transformers", "polygraphy", "onnxruntime", *TENSORRT_BACKENDS.values()]
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda or "none"}
    versions |= {name: version for name in packages if (version := _version(name))}
    return Found(
        gpu=torch.cuda.get_device_name() if has_gpu else None,
        capability="{}.{}".format(*torch.cuda.get_device_capability()) if has_gpu else None,
        versions=versions,
        tensorrt=[backend for backend, module in TENSORRT_BACKENDS.items() if module in versions],
        providers=_providers(),
    )


def _version(package: str) -> str | None:
    """An installed package's version, by its files alone."""
    from importlib.metadata import PackageNotFoundError, packages_distributions, version

    if importlib.util.find_spec(package) is None:
        return None
    for distribution in packages_distributions().get(package, [package]):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return "of an unknown version"


def _providers() -> list[str]:
    if importlib.util.find_spec("onnxruntime") is None:
        return []
    return list(importlib.import_module("onnxruntime").get_available_providers())


def skip_reason(part: str, found: Found, *, backend: str | None, engines: bool) -> str | None:
    """Why a part can't run here; None where it can.

    Args:
        part: One of `PARTS`.
        found: The machine.
        backend: The TensorRT back end to check; None where none is installed.
        engines: Whether engines were built or given.
    """
    if found.gpu is None:
        return "no GPU (PyTorch finds none)"
    if part in ("kernels", "torch") and "triton" not in found.versions:
        return "Triton is not installed"
    if part == "engines" and backend is None:
        return f"no TensorRT library: pip install {' or '.join(_EXTRAS.values())}"
    if part == "engines" and "onnxruntime" not in found.versions:
        return "ONNX Runtime, whose result engines are compared with, is not installed"
    if part == "lossless" and not engines and CUDA_PROVIDER not in found.providers:
        return "there are no engines: the part `engines` made none, and ONNX Runtime has no CUDA here"
    return None
