"""TensorRT's engines, and those of TensorRT for RTX: one code path for both."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, cast

import spec_trt
from spec_trt import names
from spec_trt.builder.backend import Job
from spec_trt.builder.tensorrt.child import build_in_child
from spec_trt.builder.tensorrt.graph_build import GraphBuild
from spec_trt.builder.tensorrt.network_report import report_file
from spec_trt.builder.tensorrt.profiles import Profiles, graph_profiles
from spec_trt.builder.tensorrt.settings import TensorRtSettings, choose_settings
from spec_trt.builder.tensorrt.target import Target, choose_target
from spec_trt.errors import BackendError, SpecTrtError
from spec_trt.files import sha256
from spec_trt.manifest import EngineFacts, GraphFacts, ModelFacts, TensorRtFacts
from spec_trt.plugins.tree_attention.plugin import PLUGIN_VERSION
from spec_trt.plugins.tree_attention.support import refuse_capability, refuse_sizes
from spec_trt.tensorrt import tensorrt_version

__all__ = ["TensorRtBackend"]

_LOG = "build.log"
_FIRST_WITH_BF16 = 8.0  # compute capability


class TensorRtBackend:
    """Builds for TensorRT or TensorRT for RTX; see `Backend`."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._backend = cast(Literal["trt", "trt-rtx"], job.config.backend)

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
        version = tensorrt_version(self._backend)
        if find_spec("polygraphy") is None:
            raise BackendError(f"Polygraphy is not installed: `pip install 'spec-trt[{self._backend}]'`")
        config, settings = self._job.config, self._settings
        self._refuse_types_that_gpus_lack()
        if settings.attention == "plugin":
            self._refuse_what_the_plugin_lacks()
        return EngineFacts(
            backend=self._backend,
            precision=self._job.bundle.model.dtype,
            library_version=version,
            builder_version=spec_trt.__version__,
            options={name: getattr(settings, name) for name in ("opt_batch", "opt_nodes", "workspace_bytes")},
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

    def _refuse_types_that_gpus_lack(self) -> None:
        old = [target for target in self._target.compute_capabilities if float(target) < _FIRST_WITH_BF16]
        if old and self._job.bundle.model.dtype == "bf16":
            raise BackendError(
                f"bf16 needs compute capability {_FIRST_WITH_BF16} or later, found {', '.join(old)}: "
                "export with `--dtype fp16`"
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
        """Parse, check, compile and save one graph, in a process of its own."""
        graph, file = self._job.bundle.graphs[name], f"{name}.engine"
        build = GraphBuild(
            backend=self._backend,
            name=name,
            facts=graph,
            source=self._job.config.bundle / graph.file,
            engine=directory / file,
            report=directory / report_file(name),
            log=directory / _LOG,
            profiles=self._profiles[name],
            attention_layers=self._attention_layers(name),
            settings=self._settings,
            target=self._target,
        )
        with self._kept_log(build.log):
            build_in_child(build, lambda step: self._job.progress(f"{name}: {step}"))
        return GraphFacts(file=file, inputs=graph.inputs, outputs=graph.outputs)

    def _attention_layers(self, name: str) -> int:
        eagle = self._job.bundle.heads.eagle
        if name == names.EAGLE and eagle is not None:
            return eagle.layers
        return self._job.bundle.model.layers if name == names.BASE else 0

    @contextmanager
    def _kept_log(self, log: Path) -> Iterator[None]:
        """Where the build fails, and no engine directory will be there to hold it, keep the log beside that."""
        out = self._job.config.out
        kept = out.with_name(f"{out.name}.{_LOG}")
        try:
            yield
        except SpecTrtError as error:
            if not log.exists():
                raise
            shutil.copyfile(log, kept)
            raise type(error)(f"{error} (all that the library said: {kept})") from error
