"""Parts `prepare`, `plugin` and `native`: what engines are built of, their building, and their logits."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from spec_trt.builder.build import build_engine
from spec_trt.builder.config import BuildConfig, TensorRtOptions
from spec_trt.export.bundle import export_bundle
from spec_trt.runtime.engine import Engine
from tests.gpu_check.report import Outcome
from tests.gpu_check.subject import Subject

LOGITS_BOUNDS = {"fp32": 0.02, "fp16": 0.3, "bf16": 2.0}
"""Largest difference of a logit from ONNX Runtime's in float32 on the CPU, by the engine's type."""


def make_bundle(subject: Subject, path: Path) -> Path:
    """The subject's bundle, exported where it is not there yet."""
    if not (path / "manifest.json").is_file():
        export_bundle(replace(subject.config, output=path))
    return path


def make_reference(bundle: Path, path: Path) -> Path:
    """ONNX Runtime's engine, which computes in float32 with the bundle's weights, made where it is not there yet."""
    if not (path / "manifest.json").is_file():
        build_engine(BuildConfig(bundle=bundle, out=path))
    return path


def build(backend: str, bundle: Path, attention: str, path: Path, *, length: int) -> float:
    """Build an engine for the GPU at hand; seconds.

    Args:
        backend: `trt` or `trt-rtx`.
        bundle: In the type that is checked.
        attention: `plugin` or `native`.
        path: The engine's directory.
        length: Rows of the cache.
    """
    started = time.monotonic()
    options = TensorRtOptions(attention=attention, max_length=length, prefill_chunk=64)
    build_engine(BuildConfig(bundle=bundle, out=path, backend=backend, tensorrt=options, force=True))
    return time.monotonic() - started


def compare_logits(
    outcome: Outcome, title: str, engine: Engine, reference: Engine, prompts: Sequence[Sequence[int]]
) -> None:
    """An engine's logits behind each prompt beside the reference's in float32."""
    bound, offs, same = LOGITS_BOUNDS[engine.precision], list[float](), 0
    for prompt in prompts:
        found, expected = engine.next_logits(prompt).float().cpu(), reference.next_logits(prompt).float()
        offs.append(float((found - expected).abs().max()))
        same += int(found.argmax()) == int(expected.argmax())
    worst = max(offs)
    outcome.record("logits", {"worst": worst, "bound": bound, "same_best_token": same, "prompts": len(prompts)})
    table = outcome.table([f"{title}, against ONNX Runtime in fp32", "worst logit off by", "bound", "same best token"])
    table.add(["logits", worst, bound, f"{same}/{len(prompts)}"])
    outcome.expect(worst <= bound, f"{title}: logits off by {worst:.3g}")
