"""ONNX Runtime's engines: optimized, quantized ONNX."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

import spec_trt
from spec_trt import names
from spec_trt.builder.backend import Job
from spec_trt.builder.calibration import calibration_fingerprint, calibration_tokens, measure_absmax
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
from spec_trt.errors import BuildError
from spec_trt.files import sha256
from spec_trt.float32 import raise_to_float32
from spec_trt.manifest import EngineFacts, GraphFacts, ModelFacts, TensorFacts
from spec_trt.ort import onnxruntime_version
from spec_trt.tokenizer import load_tokenizer

__all__ = ["OrtBackend"]

_HALF = {"float16", "bfloat16"}
_ALIGNMENT = 4096


class OrtBackend:
    """Builds for ONNX Runtime; see `Backend`."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._precision = job.config.precision or "fp32"
        self._head_precision = job.config.head_precision or "int8"

    def identify(self) -> EngineFacts:
        """What the engine will be."""
        config, bundle = self._job.config, self._job.bundle
        settings = options(self._precision)
        heads = {name: head_options(self._head_precision) for name in bundle.graphs if name != names.BASE}
        if heads:
            settings["heads"] = heads
        if config.calibrated:
            settings["calibration"] = calibration_fingerprint(config.calibration)
        return EngineFacts(
            backend="ort",
            precision=self._precision,
            library_version=onnxruntime_version(),
            builder_version=spec_trt.__version__,
            options=settings,
            bundle_sha256=sha256(config.bundle / "manifest.json"),
        )

    def engine_model(self) -> ModelFacts:
        """The model in float32: whatever is not quantized is raised to it."""
        return replace(self._job.bundle.model, dtype="fp32")

    def build_graph(self, name: str, directory: Path) -> GraphFacts:
        """Optimize, quantize and save one graph under the file name it had, and try it."""
        graph = self._job.bundle.graphs[name]
        self._begin(name, "load")
        model = _load(self._job.config.bundle / graph.file)
        raise_to_float32(model)
        self._apply(name, model, lean_passes())
        self._apply(name, model, self._quantizing_passes(name, model))
        self._begin(name, "LowerAttention")
        lower(model)
        self._begin(name, "save")
        model.producer_name, model.producer_version = "spec-trt", spec_trt.__version__
        ir.save(model, directory / graph.file, external_data=f"{graph.file}.data", alignment=_ALIGNMENT)
        self._begin(name, "check")
        smoke_test(directory / graph.file, self._job.bundle.model.vocab)
        return GraphFacts(file=graph.file, inputs=_raised(graph.inputs), outputs=_raised(graph.outputs))

    def _begin(self, name: str, step: str) -> None:
        self._job.progress(f"{name}: {step}")

    def _apply(self, name: str, model: ir.Model, steps: list[ir.passes.PassBase]) -> None:
        for step in steps:
            self._begin(name, type(step).__name__)
            apply_passes(model, [step])

    def _quantizing_passes(self, name: str, model: ir.Model) -> list[ir.passes.PassBase]:
        """What the precision adds to a graph; the base's activations are measured for it."""
        if name != names.BASE:
            return quantizing_head_passes(name, self._head_precision)
        absmax: dict[str, np.ndarray] = {}
        if self._job.config.calibrated:
            self._begin(name, "calibrate")
            absmax = self._measure(model)
        return quantizing_passes(self._precision, absmax)

    def _measure(self, model: ir.Model) -> dict[str, np.ndarray]:
        copy = model.clone()
        lower(copy)
        config = self._job.config
        texts = calibration_tokens(load_tokenizer(config.bundle), self._job.bundle.model.vocab, config.calibration)
        return measure_absmax(copy, texts)


def _load(path: Path) -> ir.Model:
    try:
        model = ir.load(path)
    except Exception as error:  # protobuf and onnx-ir raise unrelated types
        raise BuildError(
            f"{path} can't be read as ONNX: {str(error).splitlines()[0]}; export the bundle again"
        ) from error
    _keep_to_bundle(model, path)
    return model


def _keep_to_bundle(model: ir.Model, path: Path) -> None:
    """Have the weights read from files of the bundle alone, of which there may be hard links: onnx-ir takes none."""
    directory = path.parent.resolve()
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if not isinstance(tensor, ir.ExternalTensor):
            continue
        file = Path(tensor.path).resolve()
        if not file.is_relative_to(directory):
            raise BuildError(f"{path} has weights outside of its bundle, in {file}: export the bundle again")
        value.const_value = ir.ExternalTensor(
            file, tensor.offset, tensor.length, tensor.dtype, shape=tensor.shape, name=tensor.name or ""
        )


def _raised(tensors: list[TensorFacts]) -> list[TensorFacts]:
    """The interface after `raise_to_float32`."""
    return [replace(tensor, dtype="float32") if tensor.dtype in _HALF else tensor for tensor in tensors]
