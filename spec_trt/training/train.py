"""Train a head, from data files to a checkpoint."""

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from transformers import set_seed

from spec_trt.errors import ConfigError
from spec_trt.files import atomic_directory
from spec_trt.heads.eagle import EagleDraft
from spec_trt.heads.eagle_checkpoint import check_standalone_eagle, save_eagle
from spec_trt.heads.frequent_ids import DraftVocabulary, most_frequent_ids
from spec_trt.heads.medusa import MedusaHeads
from spec_trt.heads.medusa_checkpoint import check_standalone_medusa, save_medusa
from spec_trt.heads.static_tree import best_static_tree
from spec_trt.heads.target import head_target
from spec_trt.training.base import FrozenBase, LoadedBase, computes_bf16, load_base
from spec_trt.training.card import make_card
from spec_trt.training.config import MedusaSettings, TrainConfig
from spec_trt.training.conversations import Encoder, TokenSequence, count_answers, load_sequences, split_held_out
from spec_trt.training.eagle import EagleTraining, new_eagle
from spec_trt.training.feature_store import FeatureStore
from spec_trt.training.head_module import HeadModule
from spec_trt.training.joint import JointTraining, add_lora, save_joint
from spec_trt.training.joint_trainer import HeadsWarmup, JointTrainer
from spec_trt.training.medusa import MedusaTraining, new_medusa
from spec_trt.training.self_distill import self_distill
from spec_trt.training.trainer import HeadTrainer, last_checkpoint, make_trainer

__all__ = ["Data", "train_head", "working_directory"]

Report = Callable[[str], None]
Tree = list[list[int]]
Write = Callable[[Path, Tree | None, dict[str, Any]], None]

_TREE_LEVELS = 6
"""Levels of an EAGLE tree at the most; those that no step was unrolled for count as the last one that was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """What is trained on, what is measured on, and which ids the head drafts (None: all)."""

    train: list[TokenSequence]
    held_out: list[TokenSequence]
    vocab: DraftVocabulary | None

    @property
    def draft_ids(self) -> list[int] | None:
        """The target's id of each row of the head; None for all."""
        return None if self.vocab is None else self.vocab.ids


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What is trained, and how its checkpoint is written: into a directory, with a tree and a card.

    Attributes:
        module: To train; the last of its labels are the levels of a tree.
        levels: How many of them.
        deepest: How many levels a tree may have.
        write: Writes the checkpoint.
    """

    module: HeadModule
    levels: int
    deepest: int
    write: Write


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
    if not PartialState().is_main_process:
        report = _say_nothing
    if config.out.exists():
        raise ConfigError(f"{config.out} exists already: choose another directory")
    working = working_directory(config.out)
    _claim(working, config)
    if config.threads:
        torch.set_num_threads(config.threads)
    joint = isinstance(config.head, MedusaSettings) and config.head.joint is not None
    base = load_base(config.model, "fp32" if joint else config.precision)
    data = _load_data(config, base, working)
    _describe(data, report)
    set_seed(config.seed)
    job = _prepare(config, base, data)
    trainer = _make_trainer(config, job.module, data, working)
    card = make_card(config, base.name, data.train, data.held_out, *_run(trainer, working, report))
    if trainer.is_world_process_zero():
        with atomic_directory(config.out) as staging:
            job.write(staging, _best_tree(job, trainer.rank_accuracy, config.tree_nodes), card)
        shutil.rmtree(working)
    return card


def _best_tree(job: _Job, rank_accuracy: list[list[float]] | None, nodes: int) -> Tree | None:
    """The static tree for the accuracy last measured; None where nothing was held out."""
    if rank_accuracy is None:
        return None
    levels = rank_accuracy[-job.levels :]
    return best_static_tree(levels + levels[-1:] * (job.deepest - job.levels), nodes)


def _say_nothing(_: str) -> None:
    """What the other processes of a distributed training report."""


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


def _load_data(config: TrainConfig, base: LoadedBase, working: Path) -> Data:
    encoder = Encoder(base.tokenizer, base.eos_ids, config.max_length)
    files = list(config.data)
    if config.self_distill:
        files.append(config.save_data or working / "self_distilled.jsonl")
        with PartialState().main_process_first():  # the others find it written
            self_distill(base, config.self_distill, files[-1], config.seed)
    train, held_out = split_held_out(load_sequences(files, encoder), config.held_out, config.seed)
    vocab = None
    if config.draft_vocab is not None:
        counted = train if config.draft_vocab_data is None else load_sequences([config.draft_vocab_data], encoder)
        whole = base.model.get_output_embeddings().weight.shape[0]
        vocab = most_frequent_ids(count_answers(counted), config.draft_vocab, vocab=whole, always=base.eos_ids)
    return Data(train=train, held_out=held_out, vocab=vocab)


def _describe(data: Data, report: Report) -> None:
    for name, sequences in (("train on", data.train), ("held out", data.held_out)):
        tokens = sum(len(sequence.input_ids) for sequence in sequences)
        answers = sum(sum(sequence.loss_mask) for sequence in sequences)
        report(f"{name}: {len(sequences):,} sequences, {tokens:,} tokens, {answers:,} of them in answers")
    if data.vocab is not None:
        report(f"draft vocabulary: {len(data.vocab.ids):,} ids, {100 * data.vocab.coverage:.2f} % of the answer tokens")


def _prepare(config: TrainConfig, base: LoadedBase, data: Data) -> _Job:
    target = head_target(base.model)
    if not isinstance(config.head, MedusaSettings):
        return _eagle_job(config, base, data, new_eagle(target, base.model.config, data.draft_ids, config.head.version))
    heads = new_medusa(target, config.head, data.draft_ids)
    return (
        _medusa_job(config, base, data, heads) if config.head.joint is None else _joint_job(config, base, data, heads)
    )


def _eagle_job(config: TrainConfig, base: LoadedBase, data: Data, draft: EagleDraft) -> _Job:
    assert not isinstance(config.head, MedusaSettings)
    if config.standalone:
        check_standalone_eagle(draft)

    def write(directory: Path, tree: Tree | None, card: dict[str, Any]) -> None:
        save_eagle(draft, directory, draft_ids=data.draft_ids, standalone=config.standalone, tree=tree, card=card)

    frozen = _freeze(config, base, data, draft.config.feature_layers)
    module = EagleTraining(draft, frozen, data.draft_ids, config.head, base.bf16)
    levels = config.head.unroll
    return _Job(module=module, levels=levels, deepest=max(levels, _TREE_LEVELS), write=write)


def _medusa_job(config: TrainConfig, base: LoadedBase, data: Data, heads: MedusaHeads) -> _Job:
    assert isinstance(config.head, MedusaSettings)
    if config.standalone:
        check_standalone_medusa(heads, data.draft_ids)

    def write(directory: Path, tree: Tree | None, card: dict[str, Any]) -> None:
        save_medusa(
            heads,
            directory,
            draft_ids=data.draft_ids,
            standalone=config.standalone,
            tree=tree,
            card=card,
            base=base.name,
        )

    frozen = _freeze(config, base, data, ())
    module = MedusaTraining(heads, frozen, data.draft_ids, config.head, base.bf16)
    return _Job(module=module, levels=config.head.heads, deepest=config.head.heads, write=write)


def _joint_job(config: TrainConfig, base: LoadedBase, data: Data, heads: MedusaHeads) -> _Job:
    assert isinstance(config.head, MedusaSettings)
    assert config.head.joint is not None
    joint = config.head.joint
    lora = add_lora(base.model, joint.lora) if joint.lora else None
    if lora is None:
        base.model.requires_grad_(True)

    def write(directory: Path, tree: Tree | None, card: dict[str, Any]) -> None:
        model = base.model if lora is None else lora.merge_and_unload()
        save_joint(model, base.tokenizer, heads, directory, draft_ids=data.draft_ids, tree=tree, card=card)

    bf16 = computes_bf16() if config.precision == "auto" else config.precision == "bf16"
    module = JointTraining(base.model, heads, data.draft_ids, config.head, joint, bf16)
    return _Job(module=module, levels=config.head.heads, deepest=config.head.heads, write=write)


def _freeze(config: TrainConfig, base: LoadedBase, data: Data, layers: Sequence[int]) -> FrozenBase:
    if config.feature_cache is None:
        return FrozenBase(base.model, feature_layers=layers)
    store = FeatureStore(config.feature_cache, [*data.train, *data.held_out], f"{base.name} {base.bf16}")
    return FrozenBase(base.model, feature_layers=layers, store=store)


def _make_trainer(config: TrainConfig, module: HeadModule, data: Data, working: Path) -> HeadTrainer:
    if not isinstance(module, JointTraining):
        return make_trainer(HeadTrainer, config, module, data.train, data.held_out, working)
    trainer = make_trainer(JointTrainer, config, module, data.train, data.held_out, working)
    trainer.joint = module.joint
    trainer.add_callback(HeadsWarmup(module, module.joint.heads_warmup))
    return trainer


def _run(trainer: HeadTrainer, working: Path, report: Report) -> tuple[Any, float]:
    """Train to the end, from the last checkpoint if there is one; the trainer's state, and the seconds it took."""
    checkpoint = last_checkpoint(working)
    if checkpoint is not None:
        report(f"going on from {checkpoint.name}")
    started = time.monotonic()
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    measured = [entry["step"] for entry in trainer.state.log_history if "eval_loss" in entry]
    measured_last = trainer.rank_accuracy is not None and measured[-1:] == [trainer.state.global_step]
    if trainer.eval_dataset is not None and not measured_last:
        trainer.evaluate()
    return trainer.state, time.monotonic() - started
