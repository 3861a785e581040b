"""A head of a checkpoint, to go on training."""

import hashlib
from dataclasses import replace
from pathlib import Path

from torch import nn

from spec_trt.errors import ConfigError
from spec_trt.files import sha256
from spec_trt.heads.eagle_checkpoint import LoadedEagle, load_eagle
from spec_trt.heads.medusa_checkpoint import LoadedMedusa, load_medusa
from spec_trt.heads.target import HeadTarget
from spec_trt.training.config import EagleSettings, HeadSettings, MedusaSettings

__all__ = ["checkpoint_digest", "started_eagle", "started_ids", "started_medusa"]


def started_eagle(path: Path, target: HeadTarget, settings: EagleSettings) -> LoadedEagle:
    """A draft to go on training, its own weights in fp32.

    Args:
        path: Any form of checkpoint that `export` takes.
        target: The model to draft for.
        settings: What is asked for.

    Raises:
        ModelError: It doesn't fit the target.
        ConfigError: It is of another version.
    """
    loaded = load_eagle(path, _in_float32(target))
    if loaded.draft.config.version != settings.version:
        found = loaded.draft.config.version
        raise ConfigError(f"{loaded.source} holds a head of EAGLE version {found}: add --version {found}")
    _unfreeze(loaded.draft)
    return loaded


def started_medusa(path: Path, target: HeadTarget, settings: MedusaSettings) -> LoadedMedusa:
    """Heads to go on training, in fp32.

    Args:
        path: Any form of checkpoint that `export` takes.
        target: The model to draft for.
        settings: What is asked for.

    Raises:
        ModelError: They don't fit the target.
        ConfigError: There are more or fewer of them, or each has a projection of its own, which is not trained here.
    """
    loaded = load_medusa(path, _in_float32(target))
    config = loaded.heads.config
    if (config.heads, config.layers) != (settings.heads, settings.layers):
        raise ConfigError(
            f"{loaded.source} holds {config.heads} heads of {config.layers} layers: "
            f"add --heads {config.heads} --layers {config.layers}"
        )
    if not config.shared_projection:
        raise ConfigError(
            f"{loaded.source} has a projection in every head: training goes on from heads over the model's lm_head"
        )
    _unfreeze(loaded.heads)
    return loaded


def started_ids(path: Path, target: HeadTarget, settings: HeadSettings) -> list[int] | None:
    """The ids that a checkpoint's head drafts; None for all."""
    if isinstance(settings, EagleSettings):
        return started_eagle(path, target, settings).draft_ids
    return started_medusa(path, target, settings).draft_ids


def checkpoint_digest(path: Path) -> str:
    """Tells a checkpoint from others, wherever it lies.

    Raises:
        ConfigError: There is none.
    """
    if not path.exists():
        raise ConfigError(f"{path} does not exist: --start-from takes a draft head's directory or its file of weights")
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    return hashlib.sha256(" ".join(f"{file.name} {sha256(file)}" for file in files).encode()).hexdigest()[:16]


def _in_float32(target: HeadTarget) -> HeadTarget:
    """A target whose heads are loaded without rounding them to its own type."""
    projection = target.projection
    bias = None if projection.bias is None else projection.bias.float()
    return replace(target, projection=projection.with_weight(projection.weight.float(), bias, trained=False))


def _unfreeze(head: nn.Module) -> None:
    head.train().requires_grad_(True)
