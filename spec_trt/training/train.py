"""Train a head, from data files to a checkpoint."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from transformers import set_seed

from spec_trt.errors import ConfigError
from spec_trt.files import atomic_directory
from spec_trt.training.base import LoadedBase, load_base
from spec_trt.training.card import make_card
from spec_trt.training.config import MedusaSettings, TrainConfig
from spec_trt.training.head_module import HeadModule
from spec_trt.training.jobs import Job, Tree, check_job, make_job
from spec_trt.training.joint import JointTraining
from spec_trt.training.joint_trainer import HeadsWarmup, JointTrainer
from spec_trt.training.measured_tree import measured_tree
from spec_trt.training.trainer import HeadTrainer, make_trainer
from spec_trt.training.training_data import TrainingData, describe_data, load_data
from spec_trt.training.working_directory import check_settings, claim, last_checkpoint, settings_of, working_directory

__all__ = ["train_head"]

Report = Callable[[str], None]


def train_head(config: TrainConfig, report: Report) -> dict[str, Any]:
    """Train a head and write its checkpoint; go on where an earlier call with the same settings stopped.

    Args:
        config: What to train, and how.
        report: Takes lines for the user.

    Returns:
        The card that the checkpoint keeps.

    Raises:
        ConfigError: `config.out` exists, a training with other settings was begun there, or options don't go together.
        DataError: A data file has no usable line.
        ModelError: The base can't be loaded, or such a head can't be made for it.
    """
    processes = PartialState(cpu=not torch.cuda.is_available())  # those of a machine without a GPU are found only so
    if not processes.is_main_process:
        report = _say_nothing
    if config.out.exists():
        raise ConfigError(f"{config.out} exists already: choose another directory")
    if config.threads:
        torch.set_num_threads(config.threads)
    working, base = working_directory(config.out), _load(config)
    settings = settings_of(config, base.fingerprint)
    check_settings(working, settings)
    check_job(config, base)
    data = load_data(config, base, working)
    describe_data(data, report)
    set_seed(config.seed)
    job = make_job(config, base, data)
    with processes.main_process_first():
        claim(working, settings | {"data": data.digest})
    trainer = _make_trainer(config, job.module, data, working)
    card = make_card(config, base.name, data.train, data.held_out, *_run(trainer, working, report))
    if trainer.is_world_process_zero():
        with atomic_directory(config.out) as staging:
            job.write(staging, _choose_tree(job, trainer, config.tree_nodes, report), card)
        shutil.rmtree(working)
    return card


def _say_nothing(_: str) -> None:
    """What the other processes of a distributed training report."""


def _load(config: TrainConfig) -> LoadedBase:
    joint = isinstance(config.head, MedusaSettings) and config.head.joint is not None
    return load_base(config.model, "fp32" if joint else config.precision)


def _choose_tree(job: Job, trainer: HeadTrainer, nodes: int, report: Report) -> Tree | None:
    """The static tree for the accuracy last measured; None where too little was held out."""
    levels = slice(-job.levels, None)
    tree = None
    if trainer.rank_accuracy is not None:
        tree = measured_tree(
            trainer.rank_accuracy[levels], trainer.measured_rows[levels], levels=job.deepest, nodes=nodes
        )
    if tree is None:
        report("too little was held out to choose a tree by: export takes its default")
    return tree


def _make_trainer(config: TrainConfig, module: HeadModule, data: TrainingData, working: Path) -> HeadTrainer:
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
