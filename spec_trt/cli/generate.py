"""`spec-trt generate`: one prompt, streamed."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spec_trt.cli.options import (
    MethodCommand,
    engine_argument,
    parse_options,
    read_budget,
    runtime_options,
    sampling_options,
)
from spec_trt.errors import ConfigError

if TYPE_CHECKING:
    from spec_trt.runtime.allowance import BudgetName
    from spec_trt.runtime.generation import Generation, Result
    from spec_trt.runtime.sampling import Sampling

__all__ = ["command"]


@click.command("generate", cls=MethodCommand)
@engine_argument
@click.option("--prompt", required=True, help="The prompt, or - to read it from stdin.")
@click.option("--chat", is_flag=True, help="Wrap the prompt in the model's chat template.")
@click.option("--method", default="autoregressive", show_default=True, help="The speculative method; see below.")
@click.option("-o", "--option", "options", multiple=True, metavar="NAME=VALUE", help="An option of the method.")
@click.option(
    "--budget",
    metavar="auto|fixed|N",
    default="fixed",
    show_default=True,
    callback=lambda _context, _option, text: read_budget(text),
    help="Nodes of a tree: as many as pay, by costs that `profile --save` measured; as the options say; or N at the "
    "most, the root included.",
)
@click.option("--max-new-tokens", type=int, default=256, show_default=True, help="Tokens to generate at the most.")
@click.option("--stop", multiple=True, help="Text that ends the generation and is cut off; repeatable.")
@sampling_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of streaming text.")
@click.option("--log-probs", is_flag=True, help="Have the model's log-probability of each token in it; with --json.")
@runtime_options
def command(
    engine: Path,
    prompt: str,
    chat: bool,
    method: str,
    options: tuple[str, ...],
    budget: "int | BudgetName",
    max_new_tokens: int,
    stop: tuple[str, ...],
    sampling: "Sampling",
    as_json: bool,
    log_probs: bool,
    threads: int | None,
    device: str | None,
    cuda_graphs: bool,
    verify: bool,
) -> None:
    """Generate from a prompt with the engine in the directory ENGINE.

    The text goes to stdout as it comes, a one-line summary to stderr.
    """
    from spec_trt.runtime.engine import Engine
    from spec_trt.runtime.generation import GenerationConfig
    from spec_trt.runtime.head_warning import head_warning

    if log_probs and not as_json:
        raise ConfigError("--log-probs are part of the JSON object, found no --json: add it")
    config = GenerationConfig(
        method=method,
        options=parse_options(options),
        sampling=sampling,
        max_new_tokens=max_new_tokens,
        stop=list(stop),
        log_probs=log_probs,
        budget=budget,
    )
    loaded = Engine.load(engine, device=device, threads=threads, verify=verify, cuda_graphs=cuda_graphs)
    text = sys.stdin.read() if prompt == "-" else prompt
    token_ids = loaded.encode(text, chat=chat)
    generation = loaded.stream(token_ids, config)
    if not as_json:
        _print_pieces(generation)
    result = generation.result()
    if as_json:
        click.echo(json.dumps(_report(result), ensure_ascii=False))
    click.echo(_summary(result), err=True)
    warning = head_warning(method, result.stats)
    if warning:
        click.echo(warning, err=True)


def _print_pieces(generation: "Generation") -> None:
    for piece in generation:
        click.echo(piece.text, nl=False)
        sys.stdout.flush()
    click.echo()


def _report(result: "Result") -> dict[str, object]:
    log_probs = {} if result.log_probs is None else {"log_probs": result.log_probs}
    return {
        "text": result.text,
        "token_ids": result.token_ids,
        **log_probs,
        "finish_reason": result.finish_reason,
        "guarantee": result.guarantee,
        "stats": result.stats.to_json(),
    }


def _summary(result: "Result") -> str:
    stats = result.stats
    figures = (
        f"{len(result.token_ids)} tokens ({result.finish_reason}), {stats.tokens_per_s:.1f} tok/s, "
        f"accept length {stats.accept_length:.2f}, {stats.passes} passes"
    )
    return f"{figures}, NOT LOSSLESS" if result.guarantee == "not lossless" else figures
