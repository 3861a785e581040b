"""`spec-trt demo`: the main job on a real model."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from spec_trt.runtime.generation import Result
    from spec_trt.runtime.near_tie import Comparison

__all__ = ["command"]


@click.command("demo")
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    default="spec-trt-demo",
    show_default=True,
    help="Where the bundle and the engine go; they are used again the next time.",
)
@click.option(
    "--precision",
    type=click.Choice(["fp32", "int8", "int4"]),
    default="int8",
    show_default=True,
    help="Of the engine.",
)
@click.option("--max-new-tokens", type=int, default=128, show_default=True, help="Tokens per answer.")
@click.option("--threads", type=click.IntRange(1, 1024), help="Threads inside one operator.  [default: the cores]")
def command(directory: Path, precision: str, max_new_tokens: int, threads: int | None) -> None:
    """Export, build and run SmolLM2-135M-Instruct: every method beside plain decoding, outputs compared.

    The model comes with the `demo` extra. The first run takes about two minutes.
    """
    from spec_trt.demo.run import DemoConfig, run_demo

    config = DemoConfig(directory=directory, precision=precision, max_new_tokens=max_new_tokens, threads=threads)
    report = run_demo(config, lambda step: click.echo(f"{step} ...", err=True), _show_answer)
    click.echo(report.to_text())
    click.echo(f"\nTry it: spec-trt generate {directory}/engine-{precision} --chat --method ngram --prompt '...'")


def _show_answer(results: "Mapping[str, Result]", comparisons: "Mapping[str, Comparison]") -> None:
    """Print plain decoding's answer, and of each method whether it is the same and how fast it came."""
    (_, plain), *others = results.items()
    click.echo(f"{plain.text}\n")
    for name, result in others:
        ratio = result.stats.tokens_per_s / plain.stats.tokens_per_s
        passes = f"{result.stats.passes} passes for {result.stats.emitted} tokens"
        click.echo(f"  {name:<12}{passes:<29}{ratio:.2f}x  {_verdict(result, comparisons[name])}")
    click.echo()


def _verdict(result: "Result", comparison: "Comparison") -> str:
    if comparison.verdict == "equal":
        return "same output"
    where = f"from token {comparison.position} on (the two best logits there: {comparison.gap:.2g} apart)"
    return f"{'near tie' if comparison.verdict == 'near_tie' else 'DIFFERENT'} {where}:\n{result.text}\n"
