"""Where a training that is not done keeps its checkpoints, and the settings that they were made with."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from spec_trt.errors import ConfigError
from spec_trt.training.config import TrainConfig
from spec_trt.training.start import checkpoint_digest

__all__ = ["check_settings", "claim", "last_checkpoint", "settings_of", "working_directory"]

_SETTINGS = "settings.json"
_FREE = ("out", "data", "save_data", "draft_vocab_data", "threads", "tree_nodes", "standalone")
"""What may change on the way: what the data files hold is compared, not where they lie."""


def working_directory(out: Path) -> Path:
    """Where checkpoints lie until the training is done."""
    return out.parent / f"{out.name}.training"


def settings_of(config: TrainConfig, model: str) -> dict[str, Any]:
    """What a training must have in common with the one that it goes on from, beside its data.

    Args:
        config: What is asked for.
        model: The base's fingerprint.
    """
    kept = {name: value for name, value in asdict(config).items() if name not in _FREE}
    own = kept | {
        "model": model,
        "feature_cache": config.feature_cache is not None,
        "start_from": None if config.start_from is None else checkpoint_digest(config.start_from),
    }
    return dict(json.loads(json.dumps(own)))


def check_settings(working: Path, settings: Mapping[str, Any]) -> None:
    """Make sure that checkpoints, if there are any, were made with these settings.

    Args:
        working: Where they lie.
        settings: Those known so far.

    Raises:
        ConfigError: They were made with others, or the file that says so is damaged.
    """
    if last_checkpoint(working) is None:
        return
    begun = _read(working / _SETTINGS)
    other = sorted(name for name, value in settings.items() if begun.get(name) != value)
    if other:
        raise ConfigError(
            f"{working} is of a training with another {', '.join(other)}: repeat its options to go on, "
            "or delete it to start anew"
        )


def claim(working: Path, settings: Mapping[str, Any]) -> None:
    """Make the directory one of these settings; the file that says so is there whole or not at all.

    Raises:
        ConfigError: As `check_settings`.
    """
    check_settings(working, settings)
    working.mkdir(parents=True, exist_ok=True)
    file, text = working / _SETTINGS, json.dumps(settings, indent=2) + "\n"
    if file.is_file() and file.read_text(encoding="utf-8") == text:
        return  # another process of the same training wrote it
    partial = file.with_suffix(".tmp")
    partial.write_text(text, encoding="utf-8")
    partial.rename(file)


def _read(file: Path) -> dict[str, Any]:
    try:
        begun = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _damaged(file) from error
    if not isinstance(begun, dict):
        raise _damaged(file)
    return begun


def _damaged(file: Path) -> ConfigError:
    return ConfigError(
        f"{file} is missing or damaged, so nothing says what the checkpoints beside it are of: "
        f"delete {file.parent} to start anew"
    )


def last_checkpoint(directory: Path) -> Path | None:
    """The newest checkpoint that was written in full: its state is written last."""
    found = [path for path in directory.glob("checkpoint-*") if _is_whole(path / "trainer_state.json")]
    return max(found, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


def _is_whole(state: Path) -> bool:
    try:
        json.loads(state.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return True
