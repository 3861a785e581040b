"""Train a head, from data files to a checkpoint."""

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import set_seed

from spec_trt.errors import ConfigError
from spec_trt.files import atomic_directory
from spec_trt.heads.eagle_checkpoint import save_eagle
from spec_trt.heads.medusa_checkpoint import save_medusa
from spec_trt.heads.target import head_target
from spec_trt.training.base import FrozenBase, LoadedBase, load_base
from spec_trt.training.card import make_card
from spec_trt.training.config import MedusaSettings, TrainConfig
from spec_trt.training.conversations import Encoder, TokenSequence, load_sequences, split_held_out
from spec_trt.training.draft_vocab import DraftVocab, choose_draft_vocab
from spec_trt.training.eagle import EagleTraining, feature_layers, new_eagle
from spec_trt.training.feature_store import FeatureStore
from spec_trt.training.medusa import MedusaTraining, new_medusa
from spec_trt.training.trainer import last_checkpoint, make_trainer

__all__ = ["Data", "train_head", "working_directory"]

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """What is trained on, what is measured on, and which ids the head drafts (None: all)."""

    train: list[TokenSequence]
    held_out: list[TokenSequence]
    vocab: DraftVocab | None


def working_directory(out: Path) -> Path:
    """Where checkpoints lie until the training is done."""
    return out.parent / f"{out.name}.training"


def train_head(config: TrainConfig, report: Report) -> dict[str, Any]:
    """Train a head and write its checkpoint; go on where an earlier call with the same settings stopped.

    Args:
        config: What to train, and how.
        report: Takes lines for the user.

    Returns:
        The card that the checkpoint keeps.

    Raises:
        ConfigError: `config.out` exists, or a training with other settings was begun there.
        DataError: A data file has no usable line.
        ModelError: The base can't be loaded.
    """
    if config.out.exists():
        raise ConfigError(f"{config.out} exists already: choose another directory")
    working = working_directory(config.out)
    _claim(working, config)
    if config.threads:
        torch.set_num_threads(config.threads)
    base = load_base(config.model, config.precision)
    data = _load_data(config, base)
    _describe(data, report)
    set_seed(config.seed)
    module = _make_module(config, base, data)
    trainer = make_trainer(config, module, data.train, data.held_out, working)
    checkpoint = last_checkpoint(working)
    if checkpoint is not None:
        report(f"going on from {checkpoint.name}")
    started = time.monotonic()
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    if data.held_out:
        trainer.evaluate()
    card = make_card(config, base.name, data.train, data.held_out, trainer.state, time.monotonic() - started)
    if trainer.is_world_process_zero():
        _save(config, module, data.vocab, base.name, card)
        shutil.rmtree(working)
    return card


def _claim(working: Path, config: TrainConfig) -> None:
    """Make the working directory, or make sure that it is of the same training."""
    settings = json.loads(json.dumps(asdict(config), default=str))
    file = working / "settings.json"
    if file.is_file():
        begun = json.loads(file.read_text(encoding="utf-8"))
        other = sorted(name for name in settings if settings[name] != begun.get(name))
        if other:
            raise ConfigError(
                f"{working} is of a training with another {', '.join(other)}: repeat its options to go on, "
                "or delete it to start anew"
            )
        return
    working.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _load_data(config: TrainConfig, base: LoadedBase) -> Data:
    encoder = Encoder(base.tokenizer, base.eos_ids, config.max_length)
    sequences = load_sequences(config.data, encoder)
    train, held_out = split_held_out(sequences, config.held_out, config.seed)
    vocab = None
    if config.draft_vocab is not None:
        counted = train if config.draft_vocab_data is None else load_sequences([config.draft_vocab_data], encoder)
        vocab = choose_draft_vocab(counted, config.draft_vocab, eos_ids=base.eos_ids)
    return Data(train=train, held_out=held_out, vocab=vocab)


def _describe(data: Data, report: Report) -> None:
    for name, sequences in (("train on", data.train), ("held out", data.held_out)):
        tokens = sum(len(sequence.input_ids) for sequence in sequences)
        answers = sum(sum(sequence.loss_mask) for sequence in sequences)
        report(f"{name}: {len(sequences):,} sequences, {tokens:,} tokens, {answers:,} of them in answers")
    if data.vocab is not None:
        report(f"draft vocabulary: {len(data.vocab.ids):,} ids, {100 * data.vocab.coverage:.2f} % of the answer tokens")


def _make_module(config: TrainConfig, base: LoadedBase, data: Data) -> nn.Module:
    target = head_target(base.model)
    ids = None if data.vocab is None else data.vocab.ids
    if isinstance(config.head, MedusaSettings):
        frozen = _freeze(config, base, data, ())
        return MedusaTraining(new_medusa(target, config.head, ids), frozen, ids, config.head, base.bf16)
    layers = feature_layers(config.head.version, target.layers)
    draft = new_eagle(target, base.model.config, ids, config.head.version)
    return EagleTraining(draft, _freeze(config, base, data, layers), ids, config.head, base.bf16)


def _freeze(config: TrainConfig, base: LoadedBase, data: Data, layers: Sequence[int]) -> FrozenBase:
    if config.feature_cache is None:
        return FrozenBase(base.model, feature_layers=layers)
    width = (1 + len(layers)) * base.model.get_output_embeddings().weight.shape[1]
    key = f"{base.name} {base.bf16} {list(layers)}"
    store = FeatureStore(config.feature_cache, [*data.train, *data.held_out], width, key)
    return FrozenBase(base.model, feature_layers=layers, store=store)


def _save(config: TrainConfig, module: nn.Module, vocab: DraftVocab | None, base: str, card: dict[str, Any]) -> None:
    ids = None if vocab is None else vocab.ids
    with atomic_directory(config.out) as staging:
        if isinstance(module, MedusaTraining):
            save_medusa(module.heads, staging, draft_ids=ids, standalone=config.standalone, card=card, base=base)
        elif isinstance(module, EagleTraining):
            save_eagle(module.draft, staging, draft_ids=ids, standalone=config.standalone, card=card)
