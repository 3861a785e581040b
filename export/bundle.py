"""The bundle: a directory with the graphs of the model and its heads, the tokenizer and the manifest."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir
import torch
import transformers
from torch import nn

import spec_trt
from spec_trt import names
from spec_trt.errors import ExportError
from spec_trt.export.architecture import refuse_by_config
from spec_trt.export.attention import Attend, symbolic
from spec_trt.export.base_graph import BaseGraph
from spec_trt.export.config import Dtype, ExportConfig
from spec_trt.export.head_graphs import GraphPlan, describe_heads, plan_heads
from spec_trt.export.heads import load_heads, require_files
from spec_trt.export.load import LoadedModel, load_config, load_model
from spec_trt.export.onnx_graph import trace_base
from spec_trt.export.parity import Parity, check_parity, reference_passes, worst
from spec_trt.export.quiet import quiet
from spec_trt.export.source import Source, locate
from spec_trt.export.torch_reference import reference
from spec_trt.files import atomic_directory
from spec_trt.heads.eagle_settings import default_feature_layers
from spec_trt.manifest import (
    GraphFacts,
    Manifest,
    ModelFacts,
    SourceFacts,
    TensorFacts,
    describe_files,
    save_manifest,
)
from spec_trt.ort import require_onnxruntime

__all__ = ["Exported", "export_bundle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A finished export.

    Attributes:
        manifest: What the bundle holds.
        parity: How it compared with PyTorch; None if it was not compared.
        notes: What the user should know of the heads.
    """

    manifest: Manifest
    parity: Parity | None
    notes: list[str]


def export_bundle(config: ExportConfig, progress: Callable[[str], None] | None = None) -> Exported:
    """Make a bundle from a model.

    Args:
        config: What to export, and where to.
        progress: Told each of `config.STEPS` as it begins.

    Raises:
        ConfigError: The output exists, a head does not, or a draft vocabulary can't be made.
        ModelError: The model or a head can't be loaded, is not supported, or they don't fit each other; or the model
            is too shallow for features.
        DataError: The draft vocabulary's text can't be read.
        ExportError: A graph could not be made, or differs from PyTorch.
        BackendError: The check is asked for, but ONNX Runtime is not installed.
    """
    begin = progress or _ignore
    if config.check:
        require_onnxruntime()
    require_files(config)
    with atomic_directory(config.output, replace=config.replace) as directory:
        begin("load")
        source = locate(config.model)
        features = _asked_features(source) if config.features else ()
        loaded = load_model(source, config.dtype)
        heads = load_heads(config, loaded)
        base = _plan_base(loaded, heads.feature_layers or features)
        plans = [base, *plan_heads(heads, loaded.architecture, loaded.model.dtype)]
        begin("trace")
        graphs = {base.key: _write_graph(base, directory)}
        _write_tokenizer(loaded, directory)
        begin("heads")
        graphs |= {plan.key: _write_graph(plan, directory) for plan in plans[1:]}
        model, origin, head_facts = _model_facts(loaded, config), _source_facts(source, loaded), describe_heads(heads)
        begin("check")
        parity = _check(plans, [loaded.model, *heads.modules], config.dtype, directory) if config.check else None
        begin("finish")
        manifest = Manifest(
            model=model, graphs=graphs, heads=head_facts, source=origin, files=describe_files(directory)
        )
        save_manifest(manifest, directory)
    return Exported(manifest=manifest, parity=parity, notes=heads.notes)


def _ignore(_: str) -> None:
    """Report nothing."""


def _asked_features(source: Source) -> tuple[int, ...]:
    """Told from the configuration, so that a model too shallow is refused before its weights are read."""
    config = load_config(source)
    refuse_by_config(config)
    return default_feature_layers(config.num_hidden_layers)


def _plan_base(loaded: LoadedModel, features: Sequence[int]) -> GraphPlan:
    architecture = loaded.architecture

    def graph(attend: Attend) -> BaseGraph:
        return BaseGraph(loaded.model, attend, windowed=architecture.windowed, feature_layers=features).eval()

    return GraphPlan(
        key=names.BASE,
        trace=lambda: trace_base(graph(symbolic), architecture),
        passes=lambda: reference_passes(graph(reference), architecture),
    )


def _write_graph(plan: GraphPlan, directory: Path) -> GraphFacts:
    """Trace a graph and save it."""
    model, file = plan.trace(), f"{plan.key}.onnx"
    _require_space(model, directory)
    ir.save(model, directory / file, external_data=f"{file}.data")
    for weight in model.graph.initializers.values():
        weight.const_value = None  # see `_release`
    try:
        onnx.checker.check_model(directory / file, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ExportError(f"the exported graph {file} is not valid ONNX: {str(error).splitlines()[0]}") from error
    return _graph_facts(model, file)


def _require_space(model: ir.Model, directory: Path) -> None:
    """Raise before a full disk would: NumPy's own error does not name the cause."""
    needed = sum(weight.const_value.nbytes for weight in model.graph.initializers.values() if weight.const_value)
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise ExportError(
            f"the graph's weights take {needed / 1e6:,.0f} MB, but {directory.parent} has {free / 1e6:,.0f} MB free: "
            "make room or choose another directory"
        )


def _check(plans: Sequence[GraphPlan], modules: Sequence[nn.Module], dtype: Dtype, directory: Path) -> Parity:
    """Compare the written graphs with PyTorch; the weights of `modules` are gone afterwards."""
    passes = {plan.key: plan.passes() for plan in plans}
    for module in modules:
        _release(module)
    return worst({key: check_parity(directory / f"{key}.onnx", dtype, passes[key]) for key in passes})


def _release(module: nn.Module) -> None:
    """Give the weights' memory back: ONNX Runtime needs it, and the converter's rules hold on to them."""
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data = torch.empty(0)


def _write_tokenizer(loaded: LoadedModel, directory: Path) -> None:
    if loaded.tokenizer is not None:
        with quiet():
            loaded.tokenizer.save_pretrained(directory)


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
