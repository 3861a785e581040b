"""`spec-trt build`: a bundle becomes an engine."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spec_trt.builder.config import BACKENDS, HEAD_PRECISIONS, PRECISIONS, BuildConfig, TensorRtOptions
from spec_trt.cli.tensorrt_options import tensorrt_options
from spec_trt.errors import ConfigError

if TYPE_CHECKING:
    from spec_trt.builder.evaluate import Evaluation

__all__ = ["command"]


@click.command("build")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--backend", type=click.Choice(BACKENDS), default="ort", show_default=True, help="What runs the engine.")
@click.option(
    "--precision",
    type=click.Choice(PRECISIONS),
    help="ort: fp32; int8, weights and activations (the fastest on a CPU); or int4, weights alone (the smallest).  "
    "[default: fp32]",
)
@click.option(
    "--head-precision",
    type=click.Choice(HEAD_PRECISIONS),
    help="ort: of the draft heads, which decide how many tokens are accepted, never which.  [default: int8]",
)
@click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    help="ort: text to measure activations on, for int8 and int4; JSON lines or plain text.  [default: a built-in one]",
)
@click.option(
    "--eval",
    "eval_file",
    type=click.Path(path_type=Path),
    help="ort: compare the engine with the bundle on this file's texts.  [default: no comparison]",
)
@tensorrt_options
@click.option("--force", is_flag=True, help="Replace an engine of other settings in OUT.  [default: refuse]")
@click.option("--verify", is_flag=True, help="Check the hashes of the bundle's files too.  [default: sizes only]")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.  [default: text]")
def command(
    bundle: Path,
    out: Path,
    backend: str,
    precision: str | None,
    head_precision: str | None,
    calibration: Path | None,
    eval_file: Path | None,
    tensorrt: TensorRtOptions,
    force: bool,
    verify: bool,
    as_json: bool,
) -> None:
    """Build the engine directory OUT from the bundle directory BUNDLE.

    Building again with nothing changed does nothing. What TensorRT itself says goes to OUT/build.log, or to
    OUT.build.log where the build fails.
    """
    config = BuildConfig(
        bundle=bundle,
        out=out,
        backend=backend,
        precision=precision,
        head_precision=head_precision,
        calibration=calibration,
        tensorrt=tensorrt,
        force=force,
        verify=verify,
    )
    if eval_file is not None and backend != "ort":
        raise ConfigError(f"--eval belongs to --backend ort, found {backend}: it runs the engine on the CPU")
    from spec_trt.builder.build import build_engine
    from spec_trt.texts import load_texts

    if eval_file is not None:
        load_texts(eval_file)  # before the build, not after it
    with _bar() as progress:
        built = build_engine(config, progress)
    evaluation = _evaluate(bundle, out, eval_file) if eval_file is not None else None
    click.echo(_as_json(out, built.fresh, evaluation) if as_json else _as_text(out, built.fresh, evaluation))


@contextmanager
def _bar() -> Iterator[Callable[[str], object]]:
    """Show the current step on stderr."""
    from tqdm import tqdm

    with tqdm(unit="step", bar_format="{desc} [{n_fmt} steps, {elapsed}]", leave=False) as bar:

        def begin(step: str) -> None:
            bar.set_description_str(step)
            bar.update()

        yield begin


def _evaluate(bundle: Path, out: Path, file: Path) -> "Evaluation":
    from tqdm import tqdm

    from spec_trt.builder.evaluate import evaluate, evaluation_tokens
    from spec_trt.manifest import load_manifest
    from spec_trt.tokenizer import load_tokenizer

    texts = evaluation_tokens(load_tokenizer(bundle), file)
    reference, engine = (directory / load_manifest(directory).graphs["base"].file for directory in (bundle, out))
    return evaluate(reference, engine, tqdm(texts, desc="evaluate", unit="text", leave=False))


def _as_text(out: Path, fresh: bool, evaluation: "Evaluation | None") -> str:
    lines = [f"{out}: built" if fresh else f"{out}: up to date, nothing to do"]
    if evaluation is not None:
        lines += [
            f"perplexity of the bundle   {evaluation.bundle_perplexity:.3f}",
            f"perplexity of the engine   {evaluation.engine_perplexity:.3f} (ratio {evaluation.ratio:.4f})",
            f"argmax agreement           {100 * evaluation.argmax_agreement:.2f} %",
            f"mean divergence            {evaluation.divergence:.5f} nats",
            f"on {evaluation.texts} texts, {evaluation.tokens} tokens",
        ]
    return "\n".join(lines)


def _as_json(out: Path, fresh: bool, evaluation: "Evaluation | None") -> str:
    result: dict[str, object] = {"engine": str(out), "built": fresh}
    if evaluation is not None:
        result["evaluation"] = asdict(evaluation) | {"perplexity_ratio": evaluation.ratio}
    return json.dumps(result)
