"""What a checkpoint says about how it was made."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from spec_trt.training.config import MedusaSettings, TrainConfig
from spec_trt.training.conversations import TokenSequence

__all__ = ["make_card"]

_PATHS = ("model", "out", "data", "save_data", "draft_vocab_data", "feature_cache", "threads", "start_from")


def make_card(
    config: TrainConfig,
    base: str,
    train: Sequence[TokenSequence],
    held_out: Sequence[TokenSequence],
    state: Any,  # noqa: ANN401 - transformers' TrainerState
    seconds: float,
) -> dict[str, Any]:
    """The facts of a training, with no path of this machine.

    Args:
        config: What was asked for.
        base: The base's name.
        train: What was trained on.
        held_out: What accuracy was measured on.
        state: Of the trainer, at its end.
        seconds: Of this process; a resumed training took longer.
    """
    settings = {name: value for name, value in asdict(config).items() if name not in _PATHS}
    return {
        "method": "medusa" if isinstance(config.head, MedusaSettings) else "eagle",
        "base": base,
        "data": [path.name for path in [*config.data, config.save_data] if path is not None],
        "start_from": None if config.start_from is None else config.start_from.name,
        "settings": settings,
        "train": _counts(train),
        "held_out": _counts(held_out),
        "steps": state.global_step,
        "tokens_seen": state.num_input_tokens_seen,
        "seconds": round(seconds),
        "learning_curve": [_point(entry) for entry in state.log_history if "eval_loss" in entry],
    }


def _counts(sequences: Sequence[TokenSequence]) -> dict[str, int]:
    return {
        "sequences": len(sequences),
        "tokens": sum(len(sequence.input_ids) for sequence in sequences),
        "answer_tokens": sum(sum(sequence.loss_mask) for sequence in sequences),
    }


def _point(entry: dict[str, Any]) -> dict[str, Any]:
    accuracy = {
        name.removeprefix("eval_"): round(value, 4) for name, value in entry.items() if name.startswith("eval_")
    }
    return {"step": entry["step"], "tokens": entry.get("num_input_tokens_seen"), **accuracy}
