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
from spec_trt.plugins.tree_attention.support import refuse_capability, refuse_sizes
from spec_trt.plugins.triton_gpu import import_kernel
from spec_trt.runtime.backend import graph_facts
from spec_trt.runtime.cuda_stream import CudaStream, Stream, require_gpu
from spec_trt.runtime.fixed_shapes import FixedShapes
from spec_trt.runtime.kernel_cache import KernelCache, kernel_cache
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
        gpu: What the GPU is called, for the kernels that are compiled for it.
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
        gpu: str,
        cuda_graphs: bool = True,
    ) -> None:
        self._directory, self._manifest, self._facts = directory, manifest, facts
        self._library, self._stream, self._gpu, self._cuda_graphs = library, stream, gpu, cuda_graphs
        plugin = contextlib.ExitStack()
        self._refusals = None
        if facts.attention == "plugin":
            self._refusals = plugin.enter_context(tree_attention_plugin(library))
        weakref.finalize(self, plugin.close)

    def open(self, graph: str) -> TrtSession:
        """Load a graph; see `Backend.open`."""
        facts = graph_facts(self._manifest, graph)
        with contextlib.nullcontext() if self._refusals is None else self._refusals.receiving():
            return TrtSession(
                self._directory / facts.file,
                graph,
                facts,
                library=self._library,
                stream=self._stream,
                cuda_graphs=self._cuda_graphs,
                kernels=self._kernels(facts.file),
                plugin_failure=self._refusals,
                keep_alive=self,
            )

    def _kernels(self, file: str) -> KernelCache | None:
        """Where an engine file's compiled kernels are kept."""
        digest = next((found.sha256 for found in self._manifest.files if found.path == file), None)
        if digest is None:
            return None
        return kernel_cache(digest, gpu=self._gpu, library_version=str(self._library.__version__))

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
        BackendError: The library is not installed, there is no GPU, or no Triton for the plugin, whose kernel may
            also lack what the model or the GPU needs.
        ManifestError: The engine was built for another library, plugin or GPU.
    """
    engine = manifest.engine
    if engine is None:
        raise ManifestError(f"{directory} is a bundle, not an engine: run `spec-trt build {directory} ENGINE`")
    library = import_tensorrt(engine.backend)
    device = require_gpu()
    capability = torch.cuda.get_device_capability(device)
    facts = check_tensorrt_engine(
        directory,
        engine,
        library_version=tensorrt_version(engine.backend),
        plugin_version=PLUGIN_VERSION,
        compute_capability="{}.{}".format(*capability),
    )
    if facts.attention == "plugin":
        import_kernel("triton")  # what runs it: to miss it in the middle of a pass would come late
        _refuse_plugin(manifest, 10 * capability[0] + capability[1])
    return TrtBackend(
        directory,
        manifest,
        facts,
        library=library,
        stream=CudaStream(device),
        gpu=f"{torch.cuda.get_device_name(device)} {capability}",
        cuda_graphs=cuda_graphs,
    )


def _refuse_plugin(manifest: Manifest, capability: int) -> None:
    """Refuse what the plugin's kernel would refuse in its first pass."""
    model, eagle = manifest.model, manifest.heads.eagle
    refuse_capability(dtype=model.dtype, capability=capability)
    refuse_sizes(heads=model.heads, kv_heads=model.kv_heads, head_dim=model.head_dim)
    if eagle is not None:
        refuse_sizes(heads=eagle.kv_heads, kv_heads=eagle.kv_heads, head_dim=eagle.head_dim)
