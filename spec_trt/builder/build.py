"""From a bundle to an engine directory."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

import spec_trt
from spec_trt import names
from spec_trt.builder.calibration import calibration_fingerprint, calibration_tokens, measure_absmax
from spec_trt.builder.config import BuildConfig
from spec_trt.builder.pipeline import (
    apply_passes,
    head_options,
    lean_passes,
    lower,
    options,
    quantizing_head_passes,
    quantizing_passes,
)
from spec_trt.builder.smoke import smoke_test
from spec_trt.errors import BuildError, ConfigError, ManifestError
from spec_trt.files import atomic_directory, sha256
from spec_trt.float32 import raise_to_float32
from spec_trt.manifest import (
    EngineFacts,
    GraphFacts,
    Manifest,
    TensorFacts,
    describe_files,
    engine_facts,
    load_manifest,
    save_manifest,
)
from spec_trt.ort import onnxruntime_version
from spec_trt.tokenizer import load_tokenizer

__all__ = ["Built", "Progress", "build_engine"]

Progress = Callable[[str], object]

_HALF = {"float16", "bfloat16"}
_ALIGNMENT = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The outcome of a build: the engine's manifest, and whether anything had to be done for it."""

    manifest: Manifest
    fresh: bool


def build_engine(config: BuildConfig, progress: Progress = lambda _: None) -> Built:
    """Make an engine directory from a bundle, unless an equal one is there.

    Args:
        config: What to build.
        progress: Told the name of each step as it begins.

    Raises:
        ManifestError: The bundle is missing or damaged.
        ConfigError: The output is in the way.
        BackendError: ONNX Runtime is missing or refuses the result.
        BuildError: The graph is not one that the passes can work on.
    """
    bundle = load_manifest(config.bundle, verify=config.verify)
    if bundle.engine is not None:
        raise ManifestError(f"{config.bundle} is an engine already: build from the bundle that `export` wrote")
    facts = _engine_facts(config, bundle)
    found = _existing(config.out)
    if found == facts and (whole := _whole(config)) is not None:
        return Built(manifest=whole, fresh=False)
    _check_output(config, found, facts)
    with atomic_directory(config.out, replace=found is not None) as directory:
        _copy_tokenizer(config.bundle, bundle, directory)
        graphs = {
            name: _build_graph(_Job(config=config, bundle=bundle, out=directory, progress=progress), name)
            for name in bundle.graphs
        }
        progress("check")
        for graph in graphs.values():
            smoke_test(directory / graph.file, bundle.model.vocab)
        model = replace(bundle.model, dtype="fp32")
        manifest = replace(bundle, model=model, graphs=graphs, engine=facts, files=describe_files(directory))
        save_manifest(manifest, directory)
    return Built(manifest=manifest, fresh=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What building one graph needs to know."""

    config: BuildConfig
    bundle: Manifest
    out: Path
    progress: Progress


def _engine_facts(config: BuildConfig, bundle: Manifest) -> EngineFacts:
    """What identifies the engine to be: two builds with equal facts hold the same."""
    settings = options(config.precision)
    heads = {name: head_options(config.precision) for name in bundle.graphs if name != names.BASE}
    if heads:
        settings["heads"] = heads
    if config.calibrated:
        settings["calibration"] = calibration_fingerprint(config.calibration)
    return EngineFacts(
        backend="ort",
        precision=config.precision,
        library_version=onnxruntime_version(),
        builder_version=spec_trt.__version__,
        options=settings,
        bundle_sha256=sha256(config.bundle / "manifest.json"),
    )


def _existing(out: Path) -> EngineFacts | None:
    """The facts of the engine in `out`, if that is what it holds, damaged or not."""
    try:
        return engine_facts(json.loads((out / "manifest.json").read_text(encoding="utf-8"))["engine"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _whole(config: BuildConfig) -> Manifest | None:
    """The manifest of the engine that is there already, unless it is damaged: then it is made again."""
    try:
        return load_manifest(config.out, verify=config.verify)
    except ManifestError:
        return None


def _check_output(config: BuildConfig, found: EngineFacts | None, wanted: EngineFacts) -> None:
    """Refuse to overwrite what is not an engine, or another engine without being told to."""
    if not config.out.exists():
        return
    if found is None:
        raise ConfigError(f"{config.out} exists and is no engine directory: choose another one, it is never replaced")
    if found != wanted and not config.force:
        differing = [name for name, value in asdict(wanted).items() if getattr(found, name) != value]
        raise ConfigError(
            f"{config.out} holds an engine with other {', '.join(differing)}: "
            "replace it with --force, or choose another directory"
        )


def _copy_tokenizer(source: Path, bundle: Manifest, directory: Path) -> None:
    """Copy every file of the bundle that belongs to no graph."""
    graphs = tuple(graph.file for graph in bundle.graphs.values())
    for facts in bundle.files:
        if not facts.path.startswith(graphs):
            target = directory / facts.path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / facts.path, target)


def _build_graph(job: _Job, name: str) -> GraphFacts:
    """Optimize, quantize and save one graph under the file name it had."""
    graph = job.bundle.graphs[name]
    job.progress(f"{name}: load")
    model = _load(job.config.bundle / graph.file)
    raise_to_float32(model)
    for step in lean_passes():
        job.progress(f"{name}: {type(step).__name__}")
        apply_passes(model, [step])
    steps = _quantizing_passes(job, name, model)
    for step in steps:
        job.progress(f"{name}: {type(step).__name__}")
        apply_passes(model, [step])
    job.progress(f"{name}: LowerAttention")
    lower(model)
    job.progress(f"{name}: save")
    model.producer_name, model.producer_version = "spec-trt", spec_trt.__version__
    ir.save(model, job.out / graph.file, external_data=f"{graph.file}.data", alignment=_ALIGNMENT)
    return GraphFacts(file=graph.file, inputs=_raised(graph.inputs), outputs=_raised(graph.outputs))


def _quantizing_passes(job: _Job, name: str, model: ir.Model) -> list[ir.passes.PassBase]:
    """What the precision adds to a graph; the base's activations are measured for it."""
    precision = job.config.precision
    if name != names.BASE:
        return quantizing_head_passes(name, precision)
    absmax: dict[str, np.ndarray] = {}
    if job.config.calibrated:
        job.progress(f"{name}: calibrate")
        absmax = _measure(job, model)
    return quantizing_passes(precision, absmax)


def _load(path: Path) -> ir.Model:
    try:
        return ir.load(path)
    except Exception as error:  # protobuf and onnx-ir raise unrelated types
        raise BuildError(
            f"{path} can't be read as ONNX: {str(error).splitlines()[0]}; export the bundle again"
        ) from error


def _measure(job: _Job, model: ir.Model) -> dict[str, np.ndarray]:
    copy = model.clone()
    lower(copy)
    tokenizer = load_tokenizer(job.config.bundle)
    texts = calibration_tokens(tokenizer, job.bundle.model.vocab, job.config.calibration)
    return measure_absmax(copy, texts)


def _raised(tensors: list[TensorFacts]) -> list[TensorFacts]:
    """The interface after `raise_to_float32`."""
    return [replace(tensor, dtype="float32") if tensor.dtype in _HALF else tensor for tensor in tensors]
