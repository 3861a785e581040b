"""The bundle: a directory with the base graph, the tokenizer and the manifest."""

from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir as ir
import torch
import transformers
from transformers import PreTrainedTokenizerBase

import spec_trt
from spec_trt.errors import ConfigError, ExportError
from spec_trt.export.attention import symbolic
from spec_trt.export.base_graph import BaseGraph
from spec_trt.export.config import ExportConfig
from spec_trt.export.load import LoadedModel, load_model
from spec_trt.export.onnx_graph import trace_base
from spec_trt.export.quiet import quiet
from spec_trt.export.source import Source, locate
from spec_trt.files import atomic_directory
from spec_trt.manifest import (
    GraphFacts,
    Manifest,
    ModelFacts,
    SourceFacts,
    TensorFacts,
    describe_files,
    save_manifest,
)

__all__ = ["BASE_FILE", "export_bundle", "feature_layers"]

BASE_FILE = "base.onnx"


def export_bundle(config: ExportConfig, progress: Callable[[str], None] = lambda step: None) -> Manifest:
    """Make a bundle from a model.

    Args:
        config: What to export, and where to.
        progress: Told the name of each step as it begins.

    Returns:
        The bundle's manifest.

    Raises:
        ConfigError: The output exists, or the model is too shallow for features.
        ModelError: The model can't be loaded or is not supported.
        ExportError: The graph could not be made, or differs from PyTorch.
    """
    with atomic_directory(config.output, replace=config.replace) as directory:
        progress("load")
        source = locate(config.model)
        loaded = load_model(source, config.dtype)
        progress("trace")
        graph = BaseGraph(
            loaded.model,
            symbolic,
            windowed=loaded.architecture.windowed,
            feature_layers=feature_layers(loaded.architecture.layers) if config.features else (),
        )
        model = trace_base(graph.eval(), loaded.architecture)
        progress("write")
        ir.save(model, directory / BASE_FILE, external_data=f"{BASE_FILE}.data")
        onnx.checker.check_model(directory / BASE_FILE, full_check=True)
        if loaded.tokenizer is not None:
            with quiet():
                loaded.tokenizer.save_pretrained(directory)
        manifest = Manifest(
            model=_model_facts(loaded, config),
            graphs={"base": _graph_facts(model, BASE_FILE)},
            heads={},
            source=_source_facts(source, loaded),
            files=describe_files(directory),
        )
        save_manifest(manifest, directory)
    return manifest


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
        max_positions=loaded.model.config.max_position_embeddings,
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
    return TensorFacts(name=str(value.name), dtype=str(value.dtype), shape=shape)
