"""TensorRT and TensorRT for RTX, reached through one place: two libraries with one interface."""

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

from spec_trt.errors import BackendError

__all__ = [
    "TENSORRT_BACKENDS",
    "TENSORRT_TITLES",
    "accepted_compute_capabilities",
    "import_tensorrt",
    "tensorrt_version",
]

TENSORRT_BACKENDS = {"trt": "tensorrt", "trt-rtx": "tensorrt_rtx"}
"""The Python module of each back end."""

TENSORRT_TITLES = {"trt": "TensorRT", "trt-rtx": "TensorRT for RTX"}
"""What messages call each back end's library."""

_VERSIONS = {"trt": 11, "trt-rtx": 1}  # the major ones whose interface the code is written for
_POLYGRAPHY_SWITCH = "POLYGRAPHY_USE_TENSORRT_RTX"


def import_tensorrt(backend: str) -> ModuleType:
    """Import a back end's library, and have Polygraphy use it.

    Args:
        backend: `trt` or `trt-rtx`.

    Raises:
        BackendError: It is not installed or of another version, or this process uses the other library.
    """
    other = next(module for name, module in TENSORRT_BACKENDS.items() if name != backend)
    title, install = TENSORRT_TITLES[backend], f"`pip install 'spec-trt[{backend}]'`"
    if importlib.util.find_spec(TENSORRT_BACKENDS[backend]) is None:
        raise BackendError(f"{title} is not installed: {install}")
    if sys.modules.get(other) is not None or _polygraphy_drives_another(backend):
        raise BackendError(f"this process has loaded the other TensorRT library: use {title} in a new process")
    try:
        library = importlib.import_module(TENSORRT_BACKENDS[backend])
    except (ImportError, OSError) as error:
        raise BackendError(f"{title} can't be loaded ({error}): install it again, {install}") from error
    if int(library.__version__.split(".")[0]) != _VERSIONS[backend]:
        raise BackendError(f"expected {title} {_VERSIONS[backend]}, found {library.__version__}: {install}")
    os.environ[_POLYGRAPHY_SWITCH] = "1" if backend == "trt-rtx" else "0"
    if backend == "trt-rtx":
        _link_library()
    return library


def tensorrt_version(backend: str) -> str:
    """The installed library's version; errors as for `import_tensorrt`."""
    return str(import_tensorrt(backend).__version__)


def accepted_compute_capabilities(backend: str) -> list[str]:
    """The GPUs that the installed library builds for without having them, as `8.9`, in order.

    Args:
        backend: `trt-rtx`; TensorRT builds for the GPU at hand alone.

    Raises:
        BackendError: As for `import_tensorrt`.
    """
    members = import_tensorrt(backend).ComputeCapability.__members__
    numbers = sorted(int(name.removeprefix("SM")) for name in members if name.startswith("SM"))
    return [f"{number // 10}.{number % 10}" for number in numbers]


def _polygraphy_drives_another(backend: str) -> bool:
    """Whether Polygraphy was imported before, for the other library: it reads the switch once."""
    config = sys.modules.get("polygraphy.config")
    return config is not None and bool(config.USE_TENSORRT_RTX) != (backend == "trt-rtx")


def _link_library() -> None:
    """Make `libtensorrt_rtx.so`, which the wheel lacks: a plugin's first use loads it, and ends the process if absent.

    Raises:
        BackendError: The package's directory can't be written.
    """
    spec = importlib.util.find_spec("tensorrt_rtx_libs")
    if spec is None or spec.origin is None:
        return
    directory = Path(spec.origin).parent
    link, library = directory / "libtensorrt_rtx.so", directory / "libtensorrt_rtx.so.1"
    if link.exists() or not library.exists():
        return
    try:
        link.symlink_to(library.name)
    except FileExistsError:
        return
    except OSError as error:
        raise BackendError(
            f"the tensorrt-rtx package lacks {link}, and it can't be made here ({error.strerror}): "
            f"run `ln -s {library.name} {link}` as the packages' owner"
        ) from error
