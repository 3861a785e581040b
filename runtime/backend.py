"""The back end that an engine directory was built for."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from spec_trt.errors import ConfigError, ManifestError
from spec_trt.manifest import EngineFacts, GraphFacts, Manifest
from spec_trt.ort import onnxruntime_version
from spec_trt.runtime.fixed_shapes import FixedShapes
from spec_trt.runtime.ort_session import OrtSession
from spec_trt.runtime.session import Session

__all__ = ["Backend", "OrtBackend", "graph_facts", "open_backend"]


class Backend(Protocol):
    """What runs the graphs of one directory."""

    def open(self, graph: str) -> Session:
        """Load a graph.

        Args:
            graph: A manifest's key.

        Raises:
            ManifestError: There is none of the name.
            BackendError: The library refuses it.
        """

    def fixed_shapes(self, graph: str) -> FixedShapes | None:
        """What no pass of a graph may change; None where passes may be of any size."""


class OrtBackend:
    """ONNX Runtime.

    Args:
        directory: The engine directory.
        manifest: Its manifest.
        device: `cpu`, the default, or `cuda`.
        threads: Threads inside one operator; as many as there are cores when None.
    """

    def __init__(self, directory: Path, manifest: Manifest, *, device: str | None, threads: int | None) -> None:
        self._directory, self._manifest = directory, manifest
        self._device, self._threads = device or "cpu", threads

    def open(self, graph: str) -> Session:
        """Load a graph; see `Backend.open`."""
        path = self._directory / graph_facts(self._manifest, graph).file
        return OrtSession(path, device=self._device, threads=self._threads)

    def fixed_shapes(self, graph: str) -> FixedShapes | None:  # noqa: ARG002 - the protocol's
        """Nothing is fixed: the cache grows with its sequence."""
        return None


def open_backend(
    directory: Path,
    manifest: Manifest,
    *,
    device: str | None = None,
    threads: int | None = None,
    cuda_graphs: bool = True,
) -> Backend:
    """Choose by the manifest, and refuse what this installation can't run.

    Args:
        directory: The engine directory.
        manifest: Its manifest.
        device: `cpu` or `cuda`; the back end's own when None.
        threads: ONNX Runtime's threads inside one operator; the cores when None.
        cuda_graphs: Whether a TensorRT engine's passes are captured and replayed.

    Raises:
        ManifestError: It is a bundle, or was built for another library, plugin or GPU.
        BackendError: The library is not installed, or there is no GPU.
        ConfigError: The back end does not run on the device, or has no threads to set.
    """
    facts = manifest.engine
    if facts is None:
        raise ManifestError(f"{directory} is a bundle, not an engine: run `spec-trt build {directory} ENGINE`")
    if facts.backend == "ort":
        _check_onnxruntime(directory, facts)
        return OrtBackend(directory, manifest, device=device, threads=threads)
    if device == "cpu":
        raise ConfigError(
            f"{directory} was built for {facts.backend}, which runs on a GPU: leave the device out or give cuda"
        )
    if threads is not None:
        raise ConfigError(
            f"{directory} was built for {facts.backend}, which runs on a GPU and has no threads to set: leave "
            f"--threads {threads} out"
        )
    return _open_tensorrt()(directory, manifest, cuda_graphs=cuda_graphs)


def _open_tensorrt() -> Callable[..., Backend]:
    from spec_trt.runtime.trt_backend import open_trt_backend

    return open_trt_backend


def graph_facts(manifest: Manifest, graph: str) -> GraphFacts:
    """What a manifest says of a graph.

    Raises:
        ManifestError: It has none of the name.
    """
    if graph not in manifest.graphs:
        raise ManifestError(
            f"the engine's manifest names a draft head but no graph {graph!r}: export and build it again"
        )
    return manifest.graphs[graph]


def _check_onnxruntime(directory: Path, facts: EngineFacts) -> None:
    found = onnxruntime_version()
    if found.split(".")[:2] != facts.library_version.split(".")[:2]:
        raise ManifestError(
            f"{directory} was built for ONNX Runtime {facts.library_version}, found {found}: "
            "build it again with `spec-trt build`"
        )
