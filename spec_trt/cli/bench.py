"""`spec-trt bench`: methods side by side on a file of prompts."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spec_trt.cli.options import MethodCommand, engine_argument, parse_options, runtime_options, sampling_options
from spec_trt.errors import ConfigError

if TYPE_CHECKING:
    from spec_trt.runtime.sampling import Sampling

__all__ = ["command"]


@click.command("bench", cls=MethodCommand)
@engine_argument
@click.option(
    "--prompts", required=True, type=click.Path(path_type=Path), help="JSON lines: prompt, turns or messages."
)
@click.option("--methods", help="Methods, comma-separated.  [default: all that the engine can run]")
@click.option("-o", "--option", "options", multiple=True, metavar="METHOD.NAME=VALUE", help="An option of a method.")
@click.option("--limit", type=click.IntRange(min=1), help="Take at most so many prompts.  [default: all]")
@click.option("--per-category", type=click.IntRange(min=1), help="Take the first so many per category.  [default: all]")
@click.option("--max-new-tokens", type=int, default=128, show_default=True, help="Tokens per answer at the most.")
@click.option(
    "--repeats", type=int, default=1, show_default=True, help="Runs per prompt and method; the median counts."
)
@sampling_options
@click.option("--raw", is_flag=True, help="Do not use the model's chat template.")
@click.option(
    "--turns",
    type=click.Choice(["first", "all"]),
    default="first",
    show_default=True,
    help="Turns to answer.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@runtime_options
def command(
    engine: Path,
    prompts: Path,
    methods: str | None,
    options: tuple[str, ...],
    limit: int | None,
    per_category: int | None,
    max_new_tokens: int,
    repeats: int,
    sampling: "Sampling",
    raw: bool,
    turns: str,
    as_json: bool,
    threads: int | None,
    device: str | None,
    cuda_graphs: bool,
    verify: bool,
) -> None:
    """Run methods side by side, beside plain decoding, with the engine in the directory ENGINE.

    Methods take turns prompt by prompt in one process. `speedup` is the ratio of tokens per second
    (prefill excluded) to plain decoding's, with the range over the prompts; `identical` says whether every
    output equalled plain decoding's, near ties counted apart; when sampling, plain sampling's with the same seed.
    Drawn drafts, whose outputs have only the law in common with it, and typical acceptance are said to be so there.
    """
    from tqdm import tqdm

    from spec_trt.bench import BenchConfig, run_bench
    from spec_trt.prompts import load_prompts
    from spec_trt.runtime.engine import Engine

    records = load_prompts(prompts, limit=limit, per_category=per_category)
    loaded = Engine.load(engine, device=device, threads=threads, verify=verify, cuda_graphs=cuda_graphs)
    chosen = loaded.methods if methods is None else [name.strip() for name in methods.split(",") if name.strip()]
    config = BenchConfig(
        methods=_with_options(chosen, options),
        max_new_tokens=max_new_tokens,
        repeats=repeats,
        sampling=sampling,
        chat=not raw,
        all_turns=turns == "all",
    )
    turns_asked = sum(len(record.turns) if config.all_turns else 1 for record in records)
    with tqdm(total=turns_asked, unit="prompt") as bar:
        report = run_bench(loaded, records, config, on_answer=lambda _results, _comparisons: bar.update())
    click.echo(json.dumps(report.to_json()) if as_json else report.to_text())


def _with_options(methods: Sequence[str], assignments: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Each method's own options, from METHOD.NAME=VALUE."""
    by_method: dict[str, dict[str, Any]] = {name: {} for name in methods}
    for key, value in parse_options(assignments).items():
        method, separator, name = key.partition(".")
        if not separator or method not in by_method:
            raise ConfigError(
                f"-o needs METHOD.NAME=VALUE with one of the methods {', '.join(by_method)}, found {key!r}"
            )
        by_method[method][name] = value
    return by_method
