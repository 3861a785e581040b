"""TensorRT's engines, and those of TensorRT for RTX: one code path for both."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Literal, cast

import spec_trt
from spec_trt import names
from spec_trt.builder.backend import Job
from spec_trt.builder.tensorrt.library_log import LibraryLog, library_log
from spec_trt.builder.tensorrt.monitor import deferred_interrupts
from spec_trt.builder.tensorrt.network import check_attention, check_interface, let_decompose, parse_network
from spec_trt.builder.tensorrt.network_report import report_file, report_network, save_report
from spec_trt.builder.tensorrt.plan import PlanBuilder
from spec_trt.builder.tensorrt.profiles import Profiles, graph_profiles
from spec_trt.builder.tensorrt.settings import TensorRtSettings, choose_settings
from spec_trt.builder.tensorrt.target import Target, choose_target
from spec_trt.errors import SpecTrtError
from spec_trt.files import sha256
from spec_trt.manifest import EngineFacts, GraphFacts, ModelFacts, TensorRtFacts
from spec_trt.plugins.tree_attention.plugin import PLUGIN_VERSION, tree_attention_plugin
from spec_trt.plugins.tree_attention.support import refuse_capability, refuse_sizes
from spec_trt.tensorrt import import_tensorrt, tensorrt_version

__all__ = ["TensorRtBackend"]

_LOG = "build.log"


class TensorRtBackend:
    """Builds for TensorRT or TensorRT for RTX; see `Backend`."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._backend = cast(Literal["trt", "trt-rtx"], job.config.backend)

    @cached_property
    def _library(self) -> ModuleType:
        return import_tensorrt(self._backend)

    @cached_property
    def _settings(self) -> TensorRtSettings:
        return choose_settings(self._job.config, self._job.bundle.model)

    @cached_property
    def _target(self) -> Target:
        return choose_target(self._backend, self._job.config.tensorrt.compute_capabilities)

    @cached_property
    def _profiles(self) -> dict[str, Profiles]:
        graphs = self._job.bundle.graphs
        return {name: graph_profiles(name, graph, self._settings) for name, graph in graphs.items()}

    def identify(self) -> EngineFacts:
        """What the engine will be."""
        config, settings = self._job.config, self._settings
        if settings.attention == "plugin":
            self._refuse_what_the_plugin_lacks()
        return EngineFacts(
            backend=self._backend,
            precision=self._job.bundle.model.dtype,
            library_version=tensorrt_version(self._backend),
            builder_version=spec_trt.__version__,
            options={"opt_nodes": settings.opt_nodes, "workspace_bytes": settings.workspace_bytes},
            bundle_sha256=sha256(config.bundle / "manifest.json"),
            tensorrt=TensorRtFacts(
                attention=settings.attention,
                plugin_version=PLUGIN_VERSION if settings.attention == "plugin" else None,
                compute_capabilities=self._target.compute_capabilities,
                max_length=settings.max_length,
                max_batch=settings.max_batch,
                max_nodes=settings.max_nodes,
                prefill_chunk=settings.prefill_chunk,
                profiles=self._profiles,
            ),
        )

    def _refuse_what_the_plugin_lacks(self) -> None:
        """Say so before a build does: heads of a size, or a type on a GPU, that the kernels don't have."""
        model, eagle = self._job.bundle.model, self._job.bundle.heads.eagle
        refuse_sizes(heads=model.heads, kv_heads=model.kv_heads, head_dim=model.head_dim)
        if eagle is not None:
            refuse_sizes(heads=eagle.kv_heads, kv_heads=eagle.kv_heads, head_dim=eagle.head_dim)
        for capability in self._target.compute_capabilities:
            refuse_capability(dtype=model.dtype, capability=int(capability.replace(".", "")))

    def engine_model(self) -> ModelFacts:
        """The bundle's own model: both libraries compute in the types of the graph."""
        return self._job.bundle.model

    def build_graph(self, name: str, directory: Path) -> GraphFacts:
        """Parse, check, compile and save one graph."""
        graph = self._job.bundle.graphs[name]
        file = f"{name}.engine"
        with deferred_interrupts() as stopped, self._kept_log(directory, stopped) as log:
            self._build(name, directory / file, log, stopped)
        return GraphFacts(file=file, inputs=graph.inputs, outputs=graph.outputs)

    def _build(self, name: str, path: Path, log: LibraryLog, stopped: Callable[[], bool]) -> None:
        graph, library = self._job.bundle.graphs[name], self._library

        def begin(step: str) -> None:
            self._job.progress(f"{name}: {step}")

        begin("parse")
        with self._plugin():
            parsed = parse_network(self._job.config.bundle / graph.file, log)
            check_interface(name, parsed.network, graph)
            check_attention(
                library, name, parsed.network, attention=self._settings.attention, layers=self._attention_layers(name)
            )
            let_decompose(library, parsed.network)
            builder = PlanBuilder(library, self._settings, self._target)
            plan = builder.compile(name, parsed, self._profiles[name], log, begin=begin, stopped=stopped)
            begin("save")
            path.write_bytes(plan)
            report = report_network(library, parsed.network, path.stat().st_size)
            save_report(report, path.with_name(report_file(name)))

    def _plugin(self) -> AbstractContextManager[None]:
        return tree_attention_plugin(self._library) if self._settings.attention == "plugin" else nullcontext()

    def _attention_layers(self, name: str) -> int:
        eagle = self._job.bundle.heads.eagle
        if name == names.EAGLE and eagle is not None:
            return eagle.layers
        return self._job.bundle.model.layers if name == names.BASE else 0

    @contextmanager
    def _kept_log(self, directory: Path, stopped: Callable[[], bool]) -> Iterator[LibraryLog]:
        """Keep the library's words in the engine directory; beside it, when there will be none."""
        out = self._job.config.out
        kept = out.with_name(f"{out.name}.{_LOG}")
        try:
            with library_log(directory / _LOG) as log:
                yield log
        except SpecTrtError as error:
            if stopped():
                raise
            shutil.copyfile(directory / _LOG, kept)
            raise type(error)(f"{error} (all that the library said: {kept})") from error
