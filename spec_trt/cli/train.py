"""`spec-trt train`: a draft head for a model, from data files."""

import importlib.util
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from spec_trt.errors import ConfigError
from spec_trt.training.config import (
    PRECISIONS,
    EagleSettings,
    HeadSettings,
    JointSettings,
    MedusaSettings,
    TrainConfig,
)

__all__ = ["command", "eagle", "medusa"]

_JOINT_OPTIONS = ("base_learning_rate", "heads_warmup", "heads_weight", "lora")
_FEATURE_OPTIONS = ("feature_weight", "noise")
_TOKEN_WEIGHTS = {"1": 0.1, "3": 1.0}

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def _training_options(command: Decorated) -> Decorated:
    """Add what every training takes; the names are those of `TrainConfig`."""
    for decorate in reversed(_OPTIONS):
        command = decorate(command)
    return command


_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.argument("model"),
    click.argument("out", type=click.Path(path_type=Path)),
    click.option(
        "--data",
        multiple=True,
        type=click.Path(path_type=Path),
        help="JSON lines of chat messages, prompt and response, or text; may be given several times.",
    ),
    click.option(
        "--self-distill",
        default=0,
        show_default=True,
        help="Conversations that MODEL writes itself, to train on beside --data or without it.",
    ),
    click.option(
        "--save-data", type=click.Path(path_type=Path), help="Keep those in this file, or add to it.  [default: none]"
    ),
    click.option(
        "--text-tasks",
        default=0.25,
        show_default=True,
        help="Share of those that ask about texts which MODEL wrote before: long prompts.",
    ),
    click.option(
        "--start-from",
        type=click.Path(path_type=Path),
        help="Go on training the head of this checkpoint, in any form that export takes.  [default: a new one]",
    ),
    click.option("--max-length", default=512, show_default=True, help="Tokens kept of one line."),
    click.option("--held-out", default=0.02, show_default=True, help="Share of the lines to measure accuracy on."),
    click.option("--draft-vocab", type=int, help="Let the head draft only so many of the most frequent ids.  [all]"),
    click.option(
        "--draft-vocab-data", type=click.Path(path_type=Path), help="Count ids in this file.  [default: the data]"
    ),
    click.option("--batch-size", default=8, show_default=True, help="Sequences per step and device."),
    click.option("--learning-rate", default=1e-3, show_default=True, help="Its peak."),
    click.option("--epochs", default=1.0, show_default=True, help="Passes over the data."),
    click.option("--max-steps", type=int, help="Stop after so many steps.  [default: what --epochs needs]"),
    click.option("--warmup", default=0.03, show_default=True, help="Share of the steps before the peak."),
    click.option(
        "--schedule",
        type=click.Choice(["cosine", "linear", "constant_with_warmup"]),
        default="cosine",
        show_default=True,
        help="Of the learning rate.",
    ),
    click.option("--clip", default=0.5, show_default=True, help="Largest norm of the gradients."),
    click.option("--seed", default=0, show_default=True, help="Of everything that is drawn."),
    click.option(
        "--precision",
        type=click.Choice(PRECISIONS),
        default="auto",
        show_default=True,
        help="Of the base and of matrix products; auto: bf16 where the processor computes in it.",
    ),
    click.option("--threads", type=int, help="Threads on a CPU.  [default: PyTorch's own choice]"),
    click.option("--evaluate-every", default=200, show_default=True, help="Steps between measurements."),
    click.option("--checkpoint-every", default=200, show_default=True, help="Steps between checkpoints."),
    click.option(
        "--feature-cache",
        type=click.Path(path_type=Path),
        help="Keep the base's outputs in this directory: later epochs and trainings need not run it.  [default: none]",
    ),
    click.option(
        "--tree-nodes",
        default=12,
        show_default=True,
        help="Nodes of the static tree that fits the held-out accuracy best; it is kept with the head.",
    ),
    click.option(
        "--standalone", is_flag=True, help="Write the embeddings and lm_head too, as other engines load them."
    ),
)


@click.group("train")
def command() -> None:
    """Train a draft head, on one device or with `torchrun` or `accelerate launch` on several.

    A training that was stopped goes on when the same command is given again.
    """


@command.command("medusa")
@_training_options
@click.option("--heads", default=4, show_default=True, help="Tokens ahead that are drafted.")
@click.option("--layers", default=1, show_default=True, help="Residual blocks per head.")
@click.option("--joint", is_flag=True, help="Train MODEL too (Medusa-2); OUT gets both.  [default: heads alone]")
@click.option("--base-learning-rate", default=1e-4, show_default=True, help="Of MODEL in a joint training.")
@click.option("--heads-warmup", default=0.3, show_default=True, help="Share of the steps before MODEL is trained too.")
@click.option("--heads-weight", default=0.2, show_default=True, help="Of the heads' loss in a joint training.")
@click.option("--lora", type=int, help="Rank of LoRA in a joint training.  [default: all weights are trained]")
def medusa(
    heads: int,
    layers: int,
    joint: bool,
    base_learning_rate: float,
    heads_warmup: float,
    heads_weight: float,
    lora: int | None,
    **options: Any,  # noqa: ANN401 - what `_training_options` adds
) -> None:
    """Train Medusa heads for MODEL into the checkpoint directory OUT.

    MODEL is a local Hugging Face directory, a hub id, or a .gguf file. It stays as it is, unless --joint
    trains a changed one, which OUT then holds with the heads, for `export` to take.
    """
    if not joint:
        _refuse(_JOINT_OPTIONS, "how MODEL is trained: add --joint")
    settings = JointSettings(
        base_learning_rate=base_learning_rate, heads_warmup=heads_warmup, heads_weight=heads_weight, lora=lora
    )
    _train(MedusaSettings(heads=heads, layers=layers, joint=settings if joint else None), options)


@command.command("eagle")
@_training_options
@click.option(
    "--version", type=click.Choice(["1", "3"]), default="1", show_default=True, help="EAGLE (and EAGLE-2), or EAGLE-3."
)
@click.option("--unroll", default=3, show_default=True, help="Steps on the draft's own outputs, the first included.")
@click.option("--feature-weight", default=1.0, show_default=True, help="EAGLE: weight of the features' regression.")
@click.option("--token-weight", type=float, help="Weight of the cross-entropy.  [default: 0.1, EAGLE-3: 1]")
@click.option("--noise", default=0.2, show_default=True, help="EAGLE: width of the noise on the features.")
def eagle(
    version: str,
    unroll: int,
    feature_weight: float,
    token_weight: float | None,
    noise: float,
    **options: Any,  # noqa: ANN401 - what `_training_options` adds
) -> None:
    """Train an EAGLE head for MODEL into the checkpoint directory OUT.

    MODEL is a local Hugging Face directory, a hub id, or a .gguf file.
    """
    if version == "3":
        _refuse(_FEATURE_OPTIONS, "how EAGLE learns features, which EAGLE-3 does not: leave it out")
    settings = EagleSettings(
        version=3 if version == "3" else 1,
        unroll=unroll,
        feature_weight=feature_weight,
        token_weight=_TOKEN_WEIGHTS[version] if token_weight is None else token_weight,
        noise=noise,
    )
    _train(settings, options)


def _refuse(names: Sequence[str], meaning: str) -> None:
    """Refuse options that were given and would change nothing."""
    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise ConfigError(f"--{name.replace('_', '-')} says {meaning}")


def _train(head: HeadSettings, options: dict[str, Any]) -> None:
    config = TrainConfig(head=head, **options)
    if importlib.util.find_spec("accelerate") is None:
        raise ConfigError("training needs accelerate: pip install 'spec-trt[train]'")
    from accelerate import PartialState

    from spec_trt.training.train import train_head

    card = train_head(config, lambda line: click.echo(line, err=True))
    if PartialState().is_main_process:
        click.echo(json.dumps(card["learning_curve"][-1] if card["learning_curve"] else {"steps": card["steps"]}))
        click.echo(f"wrote {config.out}", err=True)
