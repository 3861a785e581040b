"""The `spec-trt` command: thin commands over the packages, one error line instead of a traceback."""

import os
import sys
from typing import NoReturn

import click

from spec_trt import __version__
from spec_trt.cli.bench import command as bench
from spec_trt.cli.build import command as build
from spec_trt.cli.demo import command as demo
from spec_trt.cli.export import command as export
from spec_trt.cli.generate import command as generate
from spec_trt.cli.inspect import command as inspect
from spec_trt.cli.profile import command as profile
from spec_trt.cli.train import command as train
from spec_trt.cli.tune import command as tune
from spec_trt.errors import SpecTrtError

__all__ = ["cli", "main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="spec-trt")
def cli() -> None:
    """Self-speculative decoding: export a model, build an engine, generate several tokens per pass."""


for command in (train, export, build, generate, bench, profile, tune, inspect, demo):
    cli.add_command(command)


def main(args: list[str] | None = None) -> None:
    """Run the command line; errors made on purpose become one line and exit code 1."""
    try:
        cli.main(args=args, standalone_mode=False)
    except SpecTrtError as error:
        _fail(str(error))
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except OSError as error:
        _fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
    except MemoryError:
        _fail("not enough memory for these sizes: choose smaller ones")
    except Exception as error:
        if os.environ.get("SPEC_TRT_TRACEBACK"):
            raise
        _fail(
            f"unexpected {type(error).__name__}: {' '.join(str(error).split())[:300]} "
            "(please report it with the traceback that SPEC_TRT_TRACEBACK=1 shows)"
        )


def _fail(message: str) -> NoReturn:
    click.echo(f"error: {message}", err=True)
    sys.exit(1)
