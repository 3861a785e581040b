"""TensorRT and TensorRT for RTX as the back end of an engine directory."""

import contextlib
import weakref
from pathlib import Path
from types import ModuleType

import torch

from spec_trt import names
from spec_trt.errors import ManifestError
from spec_trt.manifest import Manifest, TensorRtFacts
from spec_trt.plugins.tree_attention.plugin import PLUGIN_VERSION, tree_attention_plugin
from spec_trt.plugins.triton_gpu import import_kernel
from spec_trt.runtime.backend import graph_facts
from spec_trt.runtime.cuda_stream import CudaStream, Stream, require_gpu
from spec_trt.runtime.fixed_shapes import FixedShapes
from spec_trt.runtime.trt_session import TrtSession
from spec_trt.tensorrt import import_tensorrt, tensorrt_version
from spec_trt.tensorrt_engine import check_tensorrt_engine

__all__ = ["TrtBackend", "open_trt_backend", "read_fixed_shapes"]


class TrtBackend:
    """The graphs of a directory, on one stream; the plugin stays registered as long as this is in use.

    Args:
        directory: The engine directory.
        manifest: Its manifest.
        facts: What it was built for.
        library: What `import_tensorrt` gave.
        stream: Where everything runs.
        cuda_graphs: Whether passes are captured and replayed.
    """

    def __init__(
        self,
        directory: Path,
        manifest: Manifest,
        facts: TensorRtFacts,
        *,
        library: ModuleType,
        stream: Stream,
        cuda_graphs: bool = True,
    ) -> None:
        self._directory, self._manifest, self._facts = directory, manifest, facts
        self._library, self._stream, self._cuda_graphs = library, stream, cuda_graphs
        plugin = contextlib.ExitStack()
        if facts.attention == "plugin":
            plugin.enter_context(tree_attention_plugin(library))
        weakref.finalize(self, plugin.close)

    def open(self, graph: str) -> TrtSession:
        """Load a graph; see `Backend.open`."""
        facts = graph_facts(self._manifest, graph)
        return TrtSession(
            self._directory / facts.file,
            graph,
            facts,
            library=self._library,
            stream=self._stream,
            cuda_graphs=self._cuda_graphs,
            keep_alive=self,
        )

    def fixed_shapes(self, graph: str) -> FixedShapes:
        """What no pass of a graph may change; see `Backend.fixed_shapes`.

        Raises:
            ManifestError: The manifest does not say.
        """
        try:
            return read_fixed_shapes(self._facts, graph)
        except (KeyError, IndexError, TypeError) as error:
            raise ManifestError(
                f"{self._directory}'s manifest lacks the shapes of the graph {graph!r}: build it again"
            ) from error


def read_fixed_shapes(facts: TensorRtFacts, graph: str) -> FixedShapes:
    """What a graph with a cache was built for."""
    return FixedShapes(
        capacity=facts.capacity(graph),
        max_nodes=facts.max_nodes,
        decode_window=facts.window(graph, names.DECODE),
        prefill_chunk=facts.window(graph, names.PREFILL),
    )


def open_trt_backend(directory: Path, manifest: Manifest, *, cuda_graphs: bool = True) -> TrtBackend:
    """Check that this machine can run an engine, before anything of it is loaded.

    Args:
        directory: The engine directory.
        manifest: Its manifest, of a TensorRT back end.
        cuda_graphs: Whether passes are captured and replayed.

    Raises:
        BackendError: The library is not installed, there is no GPU, or no Triton for the plugin.
        ManifestError: The engine was built for another library, plugin or GPU.
    """
    engine = manifest.engine
    if engine is None:
        raise ManifestError(f"{directory} is a bundle, not an engine: run `spec-trt build {directory} ENGINE`")
    library = import_tensorrt(engine.backend)
    device = require_gpu()
    facts = check_tensorrt_engine(
        directory,
        engine,
        library_version=tensorrt_version(engine.backend),
        plugin_version=PLUGIN_VERSION,
        compute_capability="{}.{}".format(*torch.cuda.get_device_capability(device)),
    )
    if facts.attention == "plugin":
        import_kernel("triton")  # what runs it: to miss it in the middle of a pass would name no reason
    return TrtBackend(directory, manifest, facts, library=library, stream=CudaStream(device), cuda_graphs=cuda_graphs)
