"""`spec-trt bench`: methods side by side on a file of prompts."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spec_trt.cli.options import (
    MethodCommand,
    engine_argument,
    methods_with_options,
    read_budget,
    read_numbers,
    runtime_options,
    sampling_options,
)

if TYPE_CHECKING:
    from spec_trt.batch_bench_report import BatchReport
    from spec_trt.bench import BenchConfig
    from spec_trt.bench_report import BenchReport
    from spec_trt.prompts import PromptRecord
    from spec_trt.runtime.allowance import BudgetName
    from spec_trt.runtime.engine import Engine
    from spec_trt.runtime.sampling import Sampling

__all__ = ["command"]


@click.command("bench", cls=MethodCommand)
@engine_argument
@click.option(
    "--prompts", required=True, type=click.Path(path_type=Path), help="JSON lines: prompt, turns or messages."
)
@click.option("--methods", help="Methods, comma-separated.  [default: all that the engine can run]")
@click.option("-o", "--option", "options", multiple=True, metavar="METHOD.NAME=VALUE", help="An option of a method.")
@click.option(
    "--budget",
    "budgets",
    metavar="auto|fixed|N,...",
    default="fixed",
    show_default=True,
    callback=lambda _context, _option, text: [read_budget(part) for part in text.split(",")],
    help="What sizes the trees, see `generate --help`; several run side by side, as METHOD@BUDGET.",
)
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
@click.option(
    "--batch",
    "batches",
    metavar="N,N,...",
    callback=read_numbers,
    help="Measure throughput with so many requests in flight, instead of one prompt after another.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@runtime_options
def command(
    engine: Path,
    prompts: Path,
    methods: str | None,
    options: tuple[str, ...],
    budgets: "list[int | BudgetName]",
    limit: int | None,
    per_category: int | None,
    max_new_tokens: int,
    repeats: int,
    sampling: "Sampling",
    raw: bool,
    turns: str,
    batches: tuple[int, ...] | None,
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

    With `--batch` all prompts are asked with so many requests in flight. Tokens per second then are those of all
    requests on the clock (the reading of prompts excluded), speedup is over plain decoding one at a time, and token
    and first token ms are medians of what a request waits for a token and for its first one. A run begins and ends with
    fewer in flight, so take several times as many prompts, and answers of more than a few tokens.
    """
    from spec_trt.bench import BenchConfig
    from spec_trt.prompts import load_prompts
    from spec_trt.runtime.engine import Engine

    records = load_prompts(prompts, limit=limit, per_category=per_category)
    loaded = Engine.load(engine, device=device, threads=threads, verify=verify, cuda_graphs=cuda_graphs)
    chosen = loaded.methods if methods is None else [name.strip() for name in methods.split(",") if name.strip()]
    config = BenchConfig(
        methods=methods_with_options(chosen, options),
        max_new_tokens=max_new_tokens,
        repeats=repeats,
        sampling=sampling,
        chat=not raw,
        all_turns=turns == "all",
        budgets=budgets,
    )
    report = _run(loaded, records, config) if batches is None else _run_batches(loaded, records, config, batches)
    click.echo(json.dumps(report.to_json()) if as_json else report.to_text())


def _run(engine: "Engine", records: "Sequence[PromptRecord]", config: "BenchConfig") -> "BenchReport":
    from tqdm import tqdm

    from spec_trt.bench import run_bench

    turns = sum(len(record.turns) if config.all_turns else 1 for record in records)
    with tqdm(total=turns, unit="prompt") as bar:
        return run_bench(engine, records, config, on_answer=lambda _results, _comparisons: bar.update())


def _run_batches(
    engine: "Engine", records: "Sequence[PromptRecord]", config: "BenchConfig", batches: Sequence[int]
) -> "BatchReport":
    from tqdm import tqdm

    from spec_trt.batch_bench import check_batches, planned_answers, run_batch_bench

    check_batches(batches, records, config)
    with tqdm(total=planned_answers(batches, len(records), config), unit="answer") as bar:
        return run_batch_bench(engine, records, config, batches, on_answer=bar.update)
