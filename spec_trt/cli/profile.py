"""`spec-trt profile`: what passes and drafts cost here, what generations gain, and where that breaks even."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from spec_trt.cli.options import MethodCommand, engine_argument, methods_with_options, read_numbers, runtime_options
from spec_trt.errors import ConfigError

if TYPE_CHECKING:
    from spec_trt.profile.run import Measured

__all__ = ["command"]

Item = TypeVar("Item")

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("profile", cls=MethodCommand)
@engine_argument
@click.option(
    "--prompts",
    type=click.Path(path_type=Path),
    help="JSON lines: prompt, turns or messages.  [default: six short ones of several kinds]",
)
@click.option("--limit", type=click.IntRange(min=1), help="Take at most so many of --prompts.  [default: all]")
@click.option("--methods", help="Methods, comma-separated.  [default: all that the engine can run]")
@click.option("-o", "--option", "options", multiple=True, metavar="METHOD.NAME=VALUE", help="An option of a method.")
@click.option("--max-new-tokens", type=int, default=64, show_default=True, help="Tokens of every answer.")
@click.option("--raw", is_flag=True, help="Do not use the model's chat template.")
@click.option(
    "--nodes",
    default="1,2,4,8,16,32,64",
    show_default=True,
    callback=read_numbers,
    help="Sizes of trees whose passes are measured.",
)
@click.option(
    "--past", default="32,480,992", show_default=True, callback=read_numbers, help="Committed rows behind them."
)
@click.option(
    "--batch", default="1,4,8", show_default=True, callback=read_numbers, help="Sequences that a pass serves."
)
@click.option("--kernels", is_flag=True, help="List the costliest operators of a pass too, by ONNX Runtime's profile.")
@click.option("--json", "json_file", type=_FILE, help="Write the figures, as profile/schema.json describes them.")
@click.option("--trace", type=_FILE, help="Write the steps as a trace that Perfetto and chrome://tracing open.")
@click.option("--html", type=_FILE, help="Write a page with plots, all in one file.")
@click.option("--save", is_flag=True, help="Keep the measured costs in the engine directory: drafts are sized by them.")
@runtime_options
def command(
    engine: Path,
    prompts: Path | None,
    limit: int | None,
    methods: str | None,
    options: tuple[str, ...],
    max_new_tokens: int,
    raw: bool,
    nodes: tuple[int, ...],
    past: tuple[int, ...],
    batch: tuple[int, ...],
    kernels: bool,
    json_file: Path | None,
    trace: Path | None,
    html: Path | None,
    save: bool,
    threads: int | None,
    device: str | None,
    cuda_graphs: bool,
    verify: bool,
) -> None:
    """Measure what speculation costs and gains with the engine in the directory ENGINE, on this machine.

    Passes are measured by nodes, past and batch; then every method answers the prompts, in turn, to the last token.
    From both follows the accept length that a tree must reach to pay, where each method stands against it, and what
    would be best here.
    """
    from spec_trt.profile.config import ProfileConfig
    from spec_trt.profile.cost_curve import CurveConfig
    from spec_trt.profile.run import run_profile
    from spec_trt.profile.text import profile_text
    from spec_trt.prompts import load_prompts
    from spec_trt.runtime.drafters import METHODS

    for file in (json_file, trace, html):
        _check_folder(file)
    chosen = list(METHODS) if methods is None else [name.strip() for name in methods.split(",") if name.strip()]
    by_method = methods_with_options(chosen, options)
    measured = run_profile(
        ProfileConfig(
            engine=engine,
            prompts=None if prompts is None else load_prompts(prompts, limit=limit),
            methods=None if methods is None else chosen,
            options=by_method,
            max_new_tokens=max_new_tokens,
            raw=raw,
            curve=CurveConfig(nodes=nodes, pasts=past, batches=batch),
            kernels=kernels,
            threads=threads,
            device=device,
            cuda_graphs=cuda_graphs,
            verify=verify,
        ),
        _track,
    )
    if save:
        measured.profile.costs.save(engine)
    _write(measured, json_file=json_file, trace=trace, html=html)
    click.echo(profile_text(measured.profile))


def _check_folder(file: Path | None) -> None:
    """Find a place that can't be written to before the minutes of measuring, not after."""
    if file is not None and not file.resolve().parent.is_dir():
        raise ConfigError(f"{file} can't be written: {file.parent} is not a directory; make it first")


def _track(items: "Iterable[Item]", name: str) -> "Iterable[Item]":
    from tqdm import tqdm

    return tqdm(items, desc=f"{name:13}")


def _write(measured: "Measured", *, json_file: Path | None, trace: Path | None, html: Path | None) -> None:
    from spec_trt.profile.html import profile_html
    from spec_trt.profile.trace import trace_json

    profile = measured.profile
    if json_file is not None:
        _write_whole(json_file, json.dumps(profile.to_json(), indent=1) + "\n")
    if trace is not None:
        _write_whole(trace, json.dumps(trace_json(profile.engine.name, measured.recordings, measured.runs)))
    if html is not None:
        _write_whole(html, profile_html(profile, measured.recordings))


def _write_whole(file: Path, text: str) -> None:
    staging = file.with_name(f".{file.name}.part")
    try:
        staging.write_text(text, encoding="utf-8")
        staging.replace(file)
    finally:
        staging.unlink(missing_ok=True)
