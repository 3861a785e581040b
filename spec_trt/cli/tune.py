"""`spec-trt tune`: the static tree that pays best on some prompts and this machine."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spec_trt.cli.options import engine_argument, runtime_options, sampling_options
from spec_trt.errors import ConfigError

if TYPE_CHECKING:
    from spec_trt.runtime.allowance import BudgetName
    from spec_trt.runtime.sampling import Sampling
    from spec_trt.tune.report import TuneReport

__all__ = ["command"]


@click.command("tune")
@engine_argument
@click.option(
    "--prompts", required=True, type=click.Path(path_type=Path), help="JSON lines: prompt, turns or messages."
)
@click.option("--methods", help="Methods, comma-separated.  [default: medusa and eagle, where the engine has the head]")
@click.option("--limit", type=click.IntRange(min=1), help="Take at most so many prompts.  [default: all]")
@click.option("--per-category", type=click.IntRange(min=1), help="Take the first so many per category.  [default: all]")
@click.option("--max-new-tokens", type=int, default=128, show_default=True, help="Tokens per answer at the most.")
@click.option("--max-nodes", type=int, default=32, show_default=True, help="Nodes of a tree at the most, but the root.")
@click.option(
    "--repeats", type=int, default=3, show_default=True, help="Runs per held-out prompt and tree; the median counts."
)
@click.option(
    "--budget",
    type=click.Choice(["fixed", "auto"]),
    default="fixed",
    show_default=True,
    help="Compare the whole trees, or as much of each as pays from pass to pass, as `generate` does.",
)
@sampling_options
@click.option("--raw", is_flag=True, help="Do not use the model's chat template.")
@click.option(
    "--write/--dry-run",
    default=True,
    show_default=True,
    help="Whether a tree that beats the default one becomes the engine's, in its manifest.",
)
@click.option("--force", is_flag=True, help="Write a tree too that does not beat the default one.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the tree to a file, which `-o tree=FILE` takes; for one method.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@runtime_options
def command(
    engine: Path,
    prompts: Path,
    methods: str | None,
    limit: int | None,
    per_category: int | None,
    max_new_tokens: int,
    max_nodes: int,
    repeats: int,
    budget: "BudgetName",
    sampling: "Sampling",
    raw: bool,
    write: bool,
    force: bool,
    out: Path | None,
    as_json: bool,
    threads: int | None,
    device: str | None,
    cuda_graphs: bool,
    verify: bool,
) -> None:
    """Choose the static trees of the draft heads of ENGINE, for prompts like those in FILE and for this machine.

    Of every four prompts three are answered with a wide tree drafted before every token; from what was accepted and
    from what passes cost here (`spec-trt profile ENGINE --save` measures it) the tree is solved for that emits most
    tokens per millisecond. The fourth is held out: there plain decoding, the default tree and the tuned one take turns.
    A tree that beats the default one there is written to the engine's manifest. Building the engine again from its
    bundle (`build --force`, or another directory) gives it the bundle's tree again.
    """
    from tqdm import tqdm

    from spec_trt.bench import BenchConfig, first_prompts
    from spec_trt.prompts import load_prompts
    from spec_trt.runtime.engine import Engine
    from spec_trt.tune.config import TuneConfig
    from spec_trt.tune.engine_tree import load_engine_manifest
    from spec_trt.tune.tune import chosen_methods, load_costs, planned_generations, tune_trees, write_trees

    names = () if methods is None else tuple(name.strip() for name in methods.split(",") if name.strip())
    config = TuneConfig(
        methods=names,
        max_nodes=max_nodes,
        max_new_tokens=max_new_tokens,
        repeats=repeats,
        sampling=sampling,
        budget=budget,
    )
    manifest = load_engine_manifest(engine)
    chosen, costs = chosen_methods(manifest, config), load_costs(engine)
    if costs.threads != threads:
        click.echo(f"note: costs of {_words(costs.threads)}, trees are compared with {_words(threads)}", err=True)
    _check_out(out, chosen)
    if write and not os.access(engine, os.W_OK):
        raise ConfigError(f"cannot write to {engine}, whose manifest the tree goes into: say --dry-run for none")
    records = load_prompts(prompts, limit=limit, per_category=per_category)
    loaded = Engine.load(engine, device=device, threads=threads, verify=verify, cuda_graphs=cuda_graphs)
    token_ids = first_prompts(loaded, records, BenchConfig(methods={}, chat=not raw))
    with tqdm(total=planned_generations(len(records), len(chosen), config), unit="generation") as bar:
        report = tune_trees(loaded, token_ids, costs, chosen, config, on_generation=bar.update)
    if write:
        report = write_trees(engine, loaded.manifest, report, force=force)
    if out is not None:
        _write_out(out, report)
    click.echo(json.dumps(report.to_json()) if as_json else report.to_text())


def _words(threads: int | None) -> str:
    return "as many threads as cores" if threads is None else f"{threads} threads"


def _check_out(out: Path | None, methods: list[str]) -> None:
    """Refuse, before anything runs, a file that can't hold what is found."""
    if out is not None and len(methods) > 1:
        raise ConfigError(f"--out takes one method's tree, found {', '.join(methods)}: name one with --methods")
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise ConfigError(f"--out takes a file in a directory that exists, found {out}: give another one")


def _write_out(out: Path, report: "TuneReport") -> None:
    from spec_trt.tune.tree_file import write_tree_file

    (found,) = report.methods.values()
    write_tree_file(out, (found.tuned or found.default).paths)
