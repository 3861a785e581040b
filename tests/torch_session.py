"""The exporter's wrapped PyTorch modules as a back end: the whole loop, with no library that compiles anything."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from spec_trt import names
from spec_trt.export.attention import Attend
from spec_trt.export.base_graph import BaseGraph
from spec_trt.export.bundle import _model_facts
from spec_trt.export.config import ExportConfig
from spec_trt.export.eagle_graph import EagleFuseGraph, EagleGraph
from spec_trt.export.head_graphs import describe_heads
from spec_trt.export.heads import LoadedHeads, load_heads
from spec_trt.export.load import LoadedModel, load_model
from spec_trt.export.medusa_graph import MedusaGraph
from spec_trt.export.named_graph import NamedGraph
from spec_trt.export.source import locate
from spec_trt.manifest import HeadFacts, ModelFacts
from spec_trt.runtime.captured_run import CapturedRun
from spec_trt.runtime.cuda_stream import CudaStream, Stream
from spec_trt.runtime.draft_model import DraftModel
from spec_trt.runtime.drafters.heads import Heads
from spec_trt.runtime.engine import Engine
from spec_trt.runtime.fixed_shapes import FixedShapes
from spec_trt.runtime.medusa_model import MedusaModel
from spec_trt.runtime.target import Target
from tests.runtime.fake_tensorrt import FakeStream
from tests.test_manifest import make_manifest


class TorchSession:
    """A module as a session; on a GPU it is captured as the engines are."""

    def __init__(self, graph: NamedGraph, device: torch.device, *, cuda_graphs: bool = False) -> None:
        self.device = device
        self._graph = graph.eval().to(device)
        self._stream: Stream = CudaStream(device) if device.type == "cuda" else FakeStream()
        self._cuda_graphs = cuda_graphs and device.type == "cuda"

    def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> CapturedRun:
        arguments = _arguments(self._graph, inputs)

        @torch.no_grad()
        def compute(_handle: int) -> None:
            for name, tensor in zip(self._graph.output_names, self._graph(*arguments), strict=True):
                if name in outputs:
                    outputs[name].copy_(tensor)

        return CapturedRun(compute, self._stream, graphs=self._cuda_graphs)


def _arguments(graph: NamedGraph, inputs: Mapping[str, Tensor]) -> list[Tensor | list[Tensor]]:
    """The inputs in the order of `forward`, which takes all buffers as one list."""
    buffers = [name for name in graph.input_names if name.startswith(("past_key.", "past_value."))]
    others: list[Tensor | list[Tensor]] = [inputs[name] for name in graph.input_names if name not in buffers]
    return [*others, [inputs[name] for name in buffers]] if buffers else others


class TorchModel:
    """A model and its heads, loaded once for engines that differ in how they run.

    Args:
        config: The model, its heads and their type, as for an export.
    """

    def __init__(self, config: ExportConfig) -> None:
        self.config = config
        self.loaded: LoadedModel = load_model(locate(config.model), config.dtype)
        self.heads: LoadedHeads = load_heads(config, self.loaded)

    @property
    def facts(self) -> ModelFacts:
        return _model_facts(self.loaded, self.config)

    def engine(
        self, attend: Attend, device: torch.device, *, cuda_graphs: bool = False, fixed: FixedShapes | None = None
    ) -> Engine:
        """An engine whose attention is `attend`; its passes have fixed shapes where there are some."""

        def opened(graph: NamedGraph) -> TorchSession:
            return TorchSession(graph, device, cuda_graphs=cuda_graphs)

        base = BaseGraph(
            self.loaded.model,
            attend,
            windowed=self.loaded.architecture.windowed,
            feature_layers=self.heads.feature_layers,
        )
        session, facts = opened(base), describe_heads(self.heads)
        sessions = self._head_sessions(attend, opened)

        def new_target(batch: int, cache_bytes: int | None) -> Target:
            return Target(session, self.facts, batch=batch, cache_bytes=cache_bytes, fixed=fixed)

        def new_heads() -> Heads:
            return self._new_heads(facts, sessions, fixed)

        manifest = make_manifest(model=self.facts, heads=facts)
        return Engine(manifest, Path(self.config.model), new_target, new_heads)

    def _head_sessions(self, attend: Attend, opened: Callable[[NamedGraph], TorchSession]) -> dict[str, TorchSession]:
        medusa, eagle, sessions = self.heads.medusa, self.heads.eagle, dict[str, TorchSession]()
        if medusa is not None:
            sessions[names.MEDUSA] = opened(MedusaGraph(medusa.heads, medusa.draft_ids))
        if eagle is not None:
            sessions[names.EAGLE] = opened(EagleGraph(eagle.draft, eagle.draft_ids, attend))
        if eagle is not None and eagle.draft.config.version == 3:
            sessions[names.EAGLE_FUSE] = opened(EagleFuseGraph(eagle.draft))
        return sessions

    def _new_heads(self, facts: HeadFacts, sessions: dict[str, TorchSession], fixed: FixedShapes | None) -> Heads:
        heads = Heads()
        if facts.medusa is not None:
            heads = replace(heads, medusa=MedusaModel(sessions[names.MEDUSA], facts.medusa, self.facts))
        if facts.eagle is not None:
            fuse = sessions.get(names.EAGLE_FUSE)
            eagle = DraftModel(sessions[names.EAGLE], facts.eagle, self.facts, fuse=fuse, fixed=fixed)
            heads = replace(heads, eagle=eagle)
        return heads


def fixed_shapes(*, length: int, nodes: int, chunk: int) -> FixedShapes:
    """Shapes with room for a draft's tentative rows too, as engines have them."""
    return FixedShapes(capacity=length + nodes, max_nodes=nodes, decode_window=2 * nodes, prefill_chunk=chunk)
