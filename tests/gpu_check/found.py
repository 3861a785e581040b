"""What the machine has, and which parts of the check it can run."""

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from spec_trt.tensorrt import TENSORRT_BACKENDS

CUDA_PROVIDER = "CUDAExecutionProvider"

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

    gpu: str | None = None
    capability: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    tensorrt: Sequence[str] = ()
    providers: Sequence[str] = ()

    @property
    def lines(self) -> list[str]:
        """What was found, for people."""
        gpu = f"{self.gpu}, compute capability {self.capability}" if self.gpu else "no GPU"
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        providers = ", ".join(self.providers) or "none"
        return [f"found: {gpu}", f"found: {versions}", f"found: ONNX Runtime providers {providers}"]

    @property
    def has_bf16(self) -> bool:
        """Whether the kernels can do bf16 here."""
        return self.capability is not None and tuple(map(int, self.capability.split("."))) >= (8, 0)

    def to_json(self) -> dict[str, Any]:
        """As `Found(**...)` takes it."""
        return asdict(self)


def find() -> Found:
    """Look around; imports no TensorRT library, of which a process can use only one."""
    import torch

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


def skip_reason(part: str, found: Found, *, backend: str | None, dtype: str, prepared: bool) -> str | None:
    """Why a part can't run here, or need not; None where it can.

    Args:
        part: One of `parts.PARTS`.
        found: The machine.
        backend: The TensorRT back end to check; None where none is installed.
        dtype: The model's type.
        prepared: Whether bundle and reference engine are there.
    """
    if found.gpu is None:
        return "no GPU (PyTorch finds none)"
    if part in ("kernels", "torch", "timing") and "triton" not in found.versions:
        return "Triton is not installed"
    if part in ("torch", "plugin", "native", "peer") and dtype == "bf16" and not found.has_bf16:
        return f"bf16 needs compute capability 8.0, found {found.capability}: choose --dtype fp16"
    if part == "ort" and CUDA_PROVIDER not in found.providers:
        return "ONNX Runtime has no CUDA here (pip install 'spec-trt[gpu]')"
    if part in ("prepare", "plugin", "native") and "onnxruntime" not in found.versions:
        return "ONNX Runtime, whose result engines are compared with, is not installed"
    if part in ("plugin", "native") and backend is None:
        return f"no TensorRT library: pip install {' or '.join(_EXTRAS.values())}"
    if part == "prepare":
        return _need_not_prepare(found, backend=backend, prepared=prepared)
    return None if prepared or part not in ("plugin", "native", "ort") else "the part `prepare` made no files for it"


def _need_not_prepare(found: Found, *, backend: str | None, prepared: bool) -> str | None:
    if prepared:
        return "the files are there already"
    if backend is None and CUDA_PROVIDER not in found.providers:
        return "nothing here would need the files"
    return None
