"""`spec-trt cost`: what a pass costs by its number of nodes."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spec_trt.errors import ConfigError
from spec_trt.table import format_table

if TYPE_CHECKING:
    from spec_trt.builder.cost import HeadCost, KernelCost, PassCost

__all__ = ["command"]

_KERNEL_NODES = (1, 16)
_LARGEST_LEVEL = 16  # a draft's level has few nodes


def _numbers(_: click.Context, __: click.Parameter, text: str) -> tuple[int, ...]:
    """Read numbers with commas between."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"expected numbers with commas between, such as 1,2,4, found {text!r}") from error
    if min(numbers) < 0:
        raise ConfigError(f"expected no negative numbers, found {text!r}")
    return numbers


@click.command("cost")
@click.argument("engine", type=click.Path(path_type=Path))
@click.option(
    "--threads",
    type=click.IntRange(1, 1024),
    help="Threads inside one operator.  [default: the number of cores]",
)
@click.option("--past", default="256,2048", show_default=True, callback=_numbers, help="Rows of the cache.")
@click.option("--nodes", default="1,2,4,8,16,32,64", show_default=True, callback=_numbers, help="Sizes of the tree.")
@click.option("--repeats", type=click.IntRange(min=1), default=25, show_default=True, help="Runs of each size.")
@click.option(
    "--kernels",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="List so many of the costliest kernels at 1 and 16 nodes, at the first of --past; 0 for none.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.  [default: tables]")
def command(
    engine: Path,
    threads: int | None,
    past: tuple[int, ...],
    nodes: tuple[int, ...],
    repeats: int,
    kernels: int,
    as_json: bool,
) -> None:
    """Measure how long a pass of ENGINE takes by its number of nodes: c(n); its draft heads' too."""
    if min(nodes) < 1:
        raise ConfigError("a pass has at least one node")
    from spec_trt.builder.cost import kernel_profile, measure_head_cost, measure_pass_cost

    costs = measure_pass_cost(engine, nodes, past, threads, repeats)
    levels = [count for count in nodes if count <= _LARGEST_LEVEL] or [min(nodes)]
    heads = measure_head_cost(engine, levels, past, threads, repeats)
    profiles = {
        count: kernel_profile(engine, count, past[0], threads, repeats, kernels) for count in _KERNEL_NODES if kernels
    }
    click.echo(_as_json(costs, heads, profiles) if as_json else _as_text(costs, heads, profiles, past[0]))


def _as_json(costs: "Sequence[PassCost]", heads: "Sequence[HeadCost]", profiles: "dict[int, list[KernelCost]]") -> str:
    kernels = {str(nodes): [asdict(kernel) for kernel in profile] for nodes, profile in profiles.items()}
    passes, levels = ([asdict(cost) for cost in found] for found in (costs, heads))
    return json.dumps({"passes": passes, "heads": levels, "kernels": kernels})


def _as_text(
    costs: "Sequence[PassCost]", heads: "Sequence[HeadCost]", profiles: "dict[int, list[KernelCost]]", past: int
) -> str:
    rows = [[str(cost.past), str(cost.nodes), f"{cost.latency_ms:.2f}", f"{cost.ratio:.2f}"] for cost in costs]
    tables = [format_table(["past", "nodes", "ms", "c(n)"], rows)]
    if heads:
        tables.append(f"draft heads\n{_head_table(heads)}")
    for nodes, profile in profiles.items():
        lines = [
            [item.kernel, str(item.calls), f"{item.total_ms:.2f}", f"{100 * item.share:.0f} %"] for item in profile
        ]
        title = f"costliest kernels at {nodes} nodes, past {past} (under the profiler)"
        tables.append(f"{title}\n{format_table(['kernel', 'calls', 'ms', 'share'], lines)}")
    return "\n\n".join(tables)


def _head_table(heads: "Sequence[HeadCost]") -> str:
    rows = [
        [cost.graph, "-" if cost.past is None else str(cost.past), str(cost.nodes), f"{cost.latency_ms:.2f}"]
        for cost in heads
    ]
    return format_table(["graph", "past", "nodes", "ms"], rows)
