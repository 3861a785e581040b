"""Parts `engines` and `lossless`: TensorRT's engines, built here, beside ONNX Runtime's result and plain decoding's."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from spec_trt.builder.build import build_engine
from spec_trt.builder.config import BuildConfig, TensorRtOptions
from spec_trt.export.bundle import export_bundle
from spec_trt.runtime.engine import Engine
from tests.gpu_check.lossless import SAMPLED, report_methods, run_methods
from tests.gpu_check.report import Outcome
from tests.gpu_check.subject import Subject

ATTENTIONS = ("plugin", "native")

LOGITS_BOUNDS = {"fp32": 0.02, "fp16": 0.3, "bf16": 2.0}
"""Largest difference of a logit from ONNX Runtime's in float32 on the CPU, by the engine's type."""


def make_bundle(subject: Subject, path: Path) -> Path:
    """The subject's bundle, exported where it is not there yet."""
    if not (path / "manifest.json").is_file():
        export_bundle(replace(subject.config, output=path))
    return path


def make_reference(subject: Subject, path: Path, work: Path) -> Path:
    """ONNX Runtime's engine in float32, made where it is not there yet."""
    if not (path / "manifest.json").is_file():
        bundle = make_bundle(subject.as_type("fp32"), work / "bundle-fp32")
        build_engine(BuildConfig(bundle=bundle, out=path))
    return path


def run_engines(
    backend: str,
    bundle: Path,
    reference: Engine,
    prompts: Sequence[Sequence[int]],
    *,
    engines: dict[str, Path],
    length: int,
) -> Outcome:
    """Build for the GPU at hand with either attention, and compare logits.

    Args:
        backend: `trt` or `trt-rtx`.
        bundle: In the type that is checked.
        reference: ONNX Runtime's engine.
        prompts: As token ids.
        engines: By attention, where each engine is or will be; those that fail are taken out.
        length: Rows of the cache.
    """
    outcome, rows = Outcome(), []
    expected = [reference.next_logits(prompt) for prompt in prompts]
    for attention in list(engines):
        try:
            figures = _compare(backend, bundle, attention, engines[attention], expected, prompts, length)
        except Exception as error:  # the other attention is still to be tried
            del engines[attention]
            outcome.failures.append(
                f"{backend}, {attention}: {type(error).__name__}: {' '.join(str(error).split())[:400]}"
            )
            continue
        outcome.figures[attention] = figures
        rows.append([attention, figures["worst_logit"], figures["bound"], f"{figures['same_top']}/{len(prompts)}"])
        outcome.expect(
            figures["worst_logit"] <= figures["bound"], f"{attention}: logits off by {figures['worst_logit']:.3g}"
        )
    outcome.add_table(
        [f"{backend} against ONNX Runtime in fp32", "worst logit off by", "bound", "same best token"], rows
    )
    return outcome


def _compare(
    backend: str,
    bundle: Path,
    attention: str,
    path: Path,
    expected: Sequence[Any],
    prompts: Sequence[Sequence[int]],
    length: int,
) -> Mapping[str, Any]:
    options = TensorRtOptions(attention=attention, max_length=length, prefill_chunk=64)
    build_engine(BuildConfig(bundle=bundle, out=path, backend=backend, tensorrt=options, force=True))
    engine = Engine.load(path)
    pairs = [
        (engine.next_logits(prompt).float().cpu(), logits.float())
        for prompt, logits in zip(prompts, expected, strict=True)
    ]
    return {
        "worst_logit": max(float((found - logits).abs().max()) for found, logits in pairs),
        "same_top": sum(int(found.argmax()) == int(logits.argmax()) for found, logits in pairs),
        "bound": LOGITS_BOUNDS[engine.precision],
    }


def run_lossless(
    loaders: Mapping[str, Callable[[], Engine]], prompts: Sequence[Sequence[int]], *, tokens: int
) -> Outcome:
    """Every method through every engine, one after another; those that can't be loaded are failures."""
    outcome = Outcome()
    for title, load in loaders.items():
        try:
            engine = load()
            report_methods(outcome, title, run_methods(engine, prompts, tokens=tokens))
            sampled = run_methods(engine, prompts[:1], tokens=tokens, sampling=SAMPLED)
            report_methods(outcome, f"{title}, sampled", sampled)
        except Exception as error:  # the others are still to be tried
            outcome.failures.append(f"{title}: {type(error).__name__}: {' '.join(str(error).split())[:400]}")
    return outcome
