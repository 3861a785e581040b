"""The bundle: a directory with the base graph, the tokenizer and the manifest."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir
import torch
import transformers
from transformers import PreTrainedModel

import spec_trt
from spec_trt.errors import ConfigError, ExportError
from spec_trt.export.architecture import Architecture
from spec_trt.export.attention import Attend, symbolic
from spec_trt.export.base_graph import BaseGraph
from spec_trt.export.config import ExportConfig
from spec_trt.export.load import LoadedModel, load_model
from spec_trt.export.onnx_graph import trace_base
from spec_trt.export.parity import Parity, check_parity, reference_passes, require_onnxruntime
from spec_trt.export.quiet import quiet
from spec_trt.export.source import Source, locate
from spec_trt.export.torch_reference import reference
from spec_trt.files import atomic_directory
from spec_trt.manifest import (
    GraphFacts,
    HeadFacts,
    Manifest,
    ModelFacts,
    SourceFacts,
    TensorFacts,
    describe_files,
    save_manifest,
)

__all__ = ["BASE_FILE", "Exported", "export_bundle", "feature_layers"]

BASE_FILE = "base.onnx"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A finished export: what the bundle holds, and how it compared with PyTorch (if it was compared)."""

    manifest: Manifest
    parity: Parity | None


def export_bundle(config: ExportConfig, progress: Callable[[str], None] | None = None) -> Exported:
    """Make a bundle from a model.

    Args:
        config: What to export, and where to.
        progress: Told each of `config.STEPS` as it begins.

    Raises:
        ConfigError: The output exists, or the model is too shallow for features.
        ModelError: The model can't be loaded or is not supported.
        ExportError: The graph could not be made, or differs from PyTorch.
        BackendError: The check is asked for, but ONNX Runtime is not installed.
    """
    begin = progress or _ignore
    if config.check:
        require_onnxruntime()
    with atomic_directory(config.output, replace=config.replace) as directory:
        begin("load")
        source = locate(config.model)
        loaded = load_model(source, config.dtype)
        features = feature_layers(loaded.architecture.layers) if config.features else ()
        begin("trace")
        graph = _write_graph(_base_graph(loaded, symbolic, features), loaded.architecture, directory)
        _write_tokenizer(loaded, directory)
        model, origin = _model_facts(loaded, config), _source_facts(source, loaded)
        begin("check")
        parity = _check(loaded, config, features, directory) if config.check else None
        begin("finish")
        manifest = Manifest(
            model=model, graphs={"base": graph}, heads=HeadFacts(), source=origin, files=describe_files(directory)
        )
        save_manifest(manifest, directory)
    return Exported(manifest=manifest, parity=parity)


def _ignore(_: str) -> None:
    """Report nothing."""


def _write_graph(graph: BaseGraph, architecture: Architecture, directory: Path) -> GraphFacts:
    """Trace the base graph and save it."""
    model = trace_base(graph, architecture)
    _require_space(model, directory)
    ir.save(model, directory / BASE_FILE, external_data=f"{BASE_FILE}.data")
    for weight in model.graph.initializers.values():
        weight.const_value = None  # see `_release`
    try:
        onnx.checker.check_model(directory / BASE_FILE, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ExportError(f"the exported graph is not valid ONNX: {str(error).splitlines()[0]}") from error
    return _graph_facts(model, BASE_FILE)


def _require_space(model: ir.Model, directory: Path) -> None:
    """Raise before a full disk would: NumPy's own error does not name the cause."""
    needed = sum(weight.const_value.nbytes for weight in model.graph.initializers.values() if weight.const_value)
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise ExportError(
            f"the graph's weights take {needed / 1e6:,.0f} MB, but {directory.parent} has {free / 1e6:,.0f} MB free: "
            "make room or choose another directory"
        )


def _check(loaded: LoadedModel, config: ExportConfig, features: Sequence[int], directory: Path) -> Parity:
    """Compare the written graph with PyTorch; the model's weights are gone afterwards."""
    passes = reference_passes(_base_graph(loaded, reference, features), loaded.architecture)
    _release(loaded.model)
    return check_parity(directory / BASE_FILE, config.dtype, passes)


def _release(model: PreTrainedModel) -> None:
    """Give the weights' memory back: ONNX Runtime needs it, and the converter's rules hold on to them."""
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = torch.empty(0)


def _base_graph(loaded: LoadedModel, attend: Attend, features: Sequence[int]) -> BaseGraph:
    return BaseGraph(loaded.model, attend, windowed=loaded.architecture.windowed, feature_layers=features).eval()


def _write_tokenizer(loaded: LoadedModel, directory: Path) -> None:
    if loaded.tokenizer is not None:
        with quiet():
            loaded.tokenizer.save_pretrained(directory)


def feature_layers(layers: int) -> tuple[int, int, int]:
    """The layers whose inputs are EAGLE-3's features.

    Raises:
        ConfigError: The model has too few layers for three distinct ones.
    """
    chosen = (2, layers // 2, layers - 3)
    if len(set(chosen)) < len(chosen) or not all(0 <= layer < layers for layer in chosen):
        raise ConfigError(f"features need three distinct layers 2, n//2, n-3: a model of {layers} layers has {chosen}")
    return chosen


def _model_facts(loaded: LoadedModel, config: ExportConfig) -> ModelFacts:
    architecture = loaded.architecture
    return ModelFacts(
        family=loaded.model.config.model_type,
        dtype=config.dtype,
        layers=architecture.layers,
        heads=architecture.heads,
        kv_heads=architecture.kv_heads,
        head_dim=architecture.head_dim,
        hidden=architecture.hidden,
        vocab=architecture.vocab,
        max_positions=architecture.max_positions,
        eos_ids=loaded.eos_ids,
    )


def _source_facts(source: Source, loaded: LoadedModel) -> SourceFacts:
    return SourceFacts(
        model=source.name,
        revision=loaded.revision,
        exporter_version=spec_trt.__version__,
        torch_version=torch.__version__,
        transformers_version=transformers.__version__,
    )


def _graph_facts(model: ir.Model, file: str) -> GraphFacts:
    return GraphFacts(
        file=file,
        inputs=[_tensor_facts(value) for value in model.graph.inputs],
        outputs=[_tensor_facts(value) for value in model.graph.outputs],
    )


def _tensor_facts(value: ir.Value) -> TensorFacts:
    shape = [dim if isinstance(dim, int) else str(dim) for dim in value.shape or ()]
    dtype = value.dtype or ir.DataType.UNDEFINED
    return TensorFacts(name=str(value.name), dtype=dtype.numpy().name, shape=shape)
