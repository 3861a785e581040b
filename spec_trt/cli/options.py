"""What several commands share: a method's own options, sampling, threads and device."""

import json
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, fields
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

import click

from spec_trt.errors import ConfigError
from spec_trt.runtime.allowance import BudgetName
from spec_trt.runtime.sampling import AcceptanceName, Sampling

__all__ = [
    "MethodCommand",
    "engine_argument",
    "methods_with_options",
    "parse_options",
    "read_budget",
    "read_numbers",
    "runtime_options",
    "sampling_options",
]

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

engine_argument = click.argument("engine", type=click.Path(path_type=Path))


def runtime_options(command: Decorated) -> Decorated:
    """Add what every command that runs an engine takes."""
    threads = click.option(
        "--threads",
        type=click.IntRange(min=1),
        help="Threads inside one operator of an ONNX Runtime engine.  [default: the number of cores]",
    )
    device = click.option(
        "--device",
        type=click.Choice(["cpu", "cuda"]),
        help="Where to run.  [default: cpu, or the GPU for an engine of TensorRT's]",
    )
    verify = click.option(
        "--verify", is_flag=True, help="Check the hashes of the engine's files too, not only their sizes."
    )
    cuda_graphs = click.option(
        "--cuda-graphs/--no-cuda-graphs",
        default=True,
        show_default=True,
        help="TensorRT: whether a pass is captured as a CUDA graph and replayed.",
    )
    return threads(device(cuda_graphs(verify(command))))


def sampling_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option for each field of `Sampling`; the command takes them as one, `sampling`."""
    names = [item.name for item in fields(Sampling)]

    @wraps(command)
    def with_sampling(**given: Any) -> None:  # noqa: ANN401 - the command's own
        command(sampling=Sampling(**{name: given.pop(name) for name in names}), **given)

    decorated: Callable[..., None] = with_sampling
    for item in reversed(fields(Sampling)):
        decorated = _sampling_option(item)(decorated)
    return decorated


def _sampling_option(item: "Field[Any]") -> Callable[[Callable[..., None]], Callable[..., None]]:
    flag = isinstance(item.default, bool)
    kind = click.Choice(get_args(AcceptanceName)) if item.name == "acceptance" else None if flag else type(item.default)
    return click.option(
        f"--{item.name.replace('_', '-')}",
        is_flag=flag,
        type=kind,
        default=item.default,
        show_default=not flag,
        help=item.metadata["help"],
    )


def read_budget(text: str) -> int | BudgetName:
    """A budget: `auto`, `fixed`, or a number of nodes.

    Raises:
        ConfigError: It is something else.
    """
    name = text.strip()
    if name in get_args(BudgetName):
        return cast("BudgetName", name)
    if not name.isdecimal() or int(name) < 1:
        raise ConfigError(
            f"budget must be auto, fixed or a number of nodes from 1 on: found {name!r}; give one of them"
        )
    return int(name)


class MethodCommand(click.Command):
    """A command whose help lists the methods and their options, read only when help is asked for."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list behind the options."""
        from spec_trt.runtime.drafters import METHODS

        with formatter.section("Methods, with the options that -o sets"):
            for name, method in METHODS.items():
                formatter.write_dl([(name, method.summary)])
                with formatter.indentation():
                    rows = [(f"{item.name}={_default(item)}", item.metadata["help"]) for item in fields(method.options)]
                    if rows:
                        formatter.write_dl(rows)


def _default(item: "Field[Any]") -> str:
    return "" if item.default is MISSING else json.dumps(item.default)


def parse_options(assignments: Iterable[str]) -> dict[str, Any]:
    """Read `NAME=VALUE` options; a value is JSON (a number, true, false), or else a text.

    Raises:
        ConfigError: One has no `=`.
    """
    options: dict[str, Any] = {}
    for assignment in assignments:
        name, separator, value = assignment.partition("=")
        if not separator:
            raise ConfigError(f"an option is NAME=VALUE, found {assignment!r}: see --help for the method's options")
        try:
            options[name.strip()] = json.loads(value)
        except ValueError:
            options[name.strip()] = value
    return options


def methods_with_options(methods: Iterable[str], assignments: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Each method's own options, from METHOD.NAME=VALUE.

    Raises:
        ConfigError: One is of another form, or of none of the methods.
    """
    by_method: dict[str, dict[str, Any]] = {name: {} for name in methods}
    for key, value in parse_options(assignments).items():
        method, separator, name = key.partition(".")
        if not separator or method not in by_method:
            raise ConfigError(
                f"-o needs METHOD.NAME=VALUE with one of the methods {', '.join(by_method)}, found {key!r}"
            )
        by_method[method][name] = value
    return by_method


def read_numbers(_: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """Read an option's numbers, with commas between; None where it is not given.

    Raises:
        ConfigError: They are no such numbers.
    """
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"{parameter.opts[0]} takes numbers like 1,4,16, found {text!r}: give such") from error
