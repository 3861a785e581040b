"""ONNX Runtime, reached through one place: whether it is there, and how a graph is opened."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from spec_trt.errors import BackendError
from spec_trt.huge_pages import huge_pages_for_new_memory

__all__ = ["first_line", "import_onnxruntime", "onnxruntime_version", "open_session", "require_onnxruntime"]


def import_onnxruntime() -> ModuleType:
    """Import the library.

    Raises:
        BackendError: It is not installed.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise BackendError(
            "ONNX Runtime is not installed: `pip install 'spec-trt[cpu]'`, or `'spec-trt[gpu]'` for CUDA (never both)"
        ) from error
    module: ModuleType = onnxruntime
    return module


def require_onnxruntime() -> None:
    """Raise if an export's check could not run; imports nothing.

    Raises:
        BackendError: ONNX Runtime is not installed.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        raise BackendError(
            "the parity check needs ONNX Runtime: pip install 'spec-trt[cpu]' or 'spec-trt[gpu]', "
            "or export with --no-check"
        )


def onnxruntime_version() -> str:
    """The installed library's version.

    Raises:
        BackendError: It is not installed.
    """
    return str(import_onnxruntime().__version__)


def open_session(
    path: Path,
    *,
    providers: Sequence[str] = ("CPUExecutionProvider",),
    threads: int | None = None,
    profile_prefix: Path | None = None,
) -> Any:  # noqa: ANN401 - onnxruntime has no types
    """Open a graph as an `onnxruntime.InferenceSession`.

    Args:
        path: The ONNX file.
        providers: Execution providers, the preferred one first.
        threads: Threads inside one operator; ONNX Runtime's choice (the cores) when None.
        profile_prefix: Where ONNX Runtime's profile goes, when one is wanted.

    Raises:
        BackendError: The library is not installed, lacks the first provider, or refuses the file.
    """
    library = import_onnxruntime()
    available = library.get_available_providers()
    if providers[0] not in available:
        raise BackendError(
            f"ONNX Runtime has no {providers[0]} here (found {', '.join(available)}): "
            "install `spec-trt[gpu]` in place of `spec-trt[cpu]`, or run on the cpu"
        )
    options = library.SessionOptions()
    options.log_severity_level = 3
    # A session's threads wait for more work by spinning. A draft head's session would find the cores taken by the
    # base's, and the other way round: twice the time for either on two cores.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if threads is not None:
        options.intra_op_num_threads = threads
    if profile_prefix is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile_prefix)
    try:
        with huge_pages_for_new_memory():
            return library.InferenceSession(str(path), options, providers=list(providers))
    except Exception as error:  # ONNX Runtime raises its own, unrelated types
        raise BackendError(f"ONNX Runtime can't load {path}: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """What an error says, without its further lines."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
