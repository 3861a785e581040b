"""The options of `spec-trt build` that belong to the TensorRT back ends."""

import functools
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from spec_trt.builder.config import ATTENTIONS, TensorRtOptions

__all__ = ["tensorrt_options"]

_SIZE = click.IntRange(min=1)

_OPTIONS = (
    click.option(
        "--compute-capability",
        "compute_capabilities",
        metavar="8.9[,12.0...]",
        callback=lambda _context, _option, value: (
            None if value is None else tuple(part.strip() for part in value.split(","))
        ),
        help="trt-rtx: the GPUs to build for.  [default: the GPU of this machine]",
    ),
    click.option(
        "--attention",
        type=click.Choice(ATTENTIONS),
        help="trt, trt-rtx: the TreeAttention plugin, or the library's own attention.  [default: plugin]",
    ),
    click.option("--max-batch", type=_SIZE, help="trt, trt-rtx: sequences of a pass at the most.  [default: 1]"),
    click.option("--max-nodes", type=_SIZE, help="trt, trt-rtx: nodes of a tree at the most.  [default: 64]"),
    click.option(
        "--opt-batch",
        type=_SIZE,
        help="trt, trt-rtx: sequences of a pass to tune for; more, up to --max-batch, run on what was chosen for it.  "
        "[default: 1]",
    ),
    click.option("--opt-nodes", type=_SIZE, help="trt, trt-rtx: nodes of a tree to tune for.  [default: 16]"),
    click.option("--prefill-chunk", type=_SIZE, help="trt, trt-rtx: prompt tokens per pass.  [default: 256]"),
    click.option(
        "--max-length",
        type=_SIZE,
        help="trt, trt-rtx: tokens of a sequence at the most, for which memory is kept.  "
        "[default: the model's context, up to 4096]",
    ),
    click.option(
        "--workspace-bytes",
        type=_SIZE,
        help="trt, trt-rtx: GPU memory that a kernel may take for itself.  [default: the library's own limit]",
    ),
    click.option(
        "--timing-cache",
        type=click.Path(path_type=Path),
        help="trt: a file to read kernel timings from and add them to.  [default: none]",
    ),
)


def tensorrt_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command, which gets them as one `tensorrt`."""

    @functools.wraps(command)
    def gathered(**values: Any) -> Any:  # noqa: ANN401 - what click hands to any command
        given = {item.name: values.pop(item.name) for item in fields(TensorRtOptions)}
        return command(tensorrt=TensorRtOptions(**given), **values)

    for option in reversed(_OPTIONS):
        gathered = option(gathered)
    return gathered
