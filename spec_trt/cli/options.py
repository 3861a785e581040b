"""What several commands share: a method's own options, threads and device."""

import json
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, TypeVar

import click

from spec_trt.errors import ConfigError

__all__ = ["MethodCommand", "engine_argument", "parse_options", "runtime_options"]

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

engine_argument = click.argument("engine", type=click.Path(path_type=Path))


def runtime_options(command: Decorated) -> Decorated:
    """Add what every command that runs an engine takes."""
    threads = click.option(
        "--threads",
        type=click.IntRange(min=1),
        help="Threads inside one operator.  [default: the number of cores]",
    )
    device = click.option(
        "--device",
        type=click.Choice(["cpu", "cuda"]),
        help="Where to run.  [default: cpu, or the GPU for an engine of TensorRT's]",
    )
    verify = click.option(
        "--verify", is_flag=True, help="Check the hashes of the engine's files too, not only their sizes."
    )
    return threads(device(verify(command)))


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
