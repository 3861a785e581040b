"""Every kind of head that can be trained: what is made for it, and how its checkpoint is written."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spec_trt.heads.eagle import EagleDraft
from spec_trt.heads.eagle_checkpoint import check_standalone_eagle, save_eagle
from spec_trt.heads.frequent_ids import most_frequent_ids
from spec_trt.heads.medusa import MedusaHeads
from spec_trt.heads.medusa_checkpoint import check_standalone_medusa, save_medusa
from spec_trt.heads.target import head_target
from spec_trt.training.base import FrozenBase, LoadedBase, computes_bf16
from spec_trt.training.config import EagleSettings, JointSettings, MedusaSettings, TrainConfig
from spec_trt.training.eagle import EagleTraining, new_eagle
from spec_trt.training.feature_store import FeatureStore
from spec_trt.training.head_module import HeadModule
from spec_trt.training.joint import JointTraining, add_lora, check_lora, save_joint
from spec_trt.training.medusa import MedusaTraining, new_medusa
from spec_trt.training.start import started_eagle, started_medusa
from spec_trt.training.training_data import TrainingData

__all__ = ["Job", "Tree", "check_job", "make_job"]

Tree = list[list[int]]

_TREE_LEVELS = 6
"""Levels of an EAGLE tree at the most: a draft can go deeper than it was unrolled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
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
    write: Callable[[Path, Tree | None, dict[str, Any]], None]


def check_job(config: TrainConfig, base: LoadedBase) -> None:
    """Refuse what can't be trained on this base or written, before time is spent on data.

    Raises:
        ConfigError: Options contradict each other or the base, or LoRA lacks its package.
        ModelError: Such a head can't be made for this base.
    """
    draft_ids = None
    if config.draft_vocab is not None:  # any ids do: what can be refused depends on their number
        draft_ids = most_frequent_ids({}, config.draft_vocab, vocab=base.vocab, always=base.eos_ids).ids
    if isinstance(config.head, EagleSettings):
        _new_draft(config, config.head, base, draft_ids)
    else:
        _new_heads(config, config.head, base, draft_ids)
        if config.head.joint is not None and config.head.joint.lora is not None:
            check_lora()


def make_job(config: TrainConfig, base: LoadedBase, data: TrainingData) -> Job:
    """Make what is trained."""
    if isinstance(config.head, EagleSettings):
        return _eagle_job(config, config.head, base, data)
    if config.head.joint is not None:
        return _joint_job(config, config.head, config.head.joint, base, data)
    return _medusa_job(config, config.head, base, data)


def _new_draft(
    config: TrainConfig, settings: EagleSettings, base: LoadedBase, draft_ids: Sequence[int] | None
) -> EagleDraft:
    target = head_target(base.model)
    if config.start_from is None:
        draft = new_eagle(target, base.model.config, draft_ids, settings.version)
    else:
        draft = started_eagle(config.start_from, target, settings).draft
    if config.standalone:
        check_standalone_eagle(draft)
    return draft


def _new_heads(
    config: TrainConfig, settings: MedusaSettings, base: LoadedBase, draft_ids: Sequence[int] | None
) -> MedusaHeads:
    target = head_target(base.model)
    if config.start_from is None:
        heads = new_medusa(target, settings, draft_ids)
    else:
        heads = started_medusa(config.start_from, target, settings).heads
    if config.standalone:
        check_standalone_medusa(heads, draft_ids)
    return heads


def _eagle_job(config: TrainConfig, settings: EagleSettings, base: LoadedBase, data: TrainingData) -> Job:
    draft = _new_draft(config, settings, base, data.draft_ids)

    def write(directory: Path, tree: Tree | None, card: dict[str, Any]) -> None:
        save_eagle(draft, directory, draft_ids=data.draft_ids, standalone=config.standalone, tree=tree, card=card)

    frozen = _freeze(config, base, data, draft.config.feature_layers)
    module = EagleTraining(draft, frozen, data.draft_ids, settings, base.bf16)
    levels = settings.unroll
    return Job(module=module, levels=levels, deepest=max(levels, _TREE_LEVELS), write=write)


def _medusa_job(config: TrainConfig, settings: MedusaSettings, base: LoadedBase, data: TrainingData) -> Job:
    heads = _new_heads(config, settings, base, data.draft_ids)

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

    module = MedusaTraining(heads, _freeze(config, base, data, ()), data.draft_ids, settings, base.bf16)
    return Job(module=module, levels=settings.heads, deepest=settings.heads, write=write)


def _joint_job(
    config: TrainConfig, settings: MedusaSettings, joint: JointSettings, base: LoadedBase, data: TrainingData
) -> Job:
    heads = _new_heads(config, settings, base, data.draft_ids)
    lora = None if joint.lora is None else add_lora(base.model, joint.lora)
    if lora is None:
        base.model.requires_grad_(True)
    bf16 = computes_bf16() if config.precision == "auto" else config.precision == "bf16"
    module = JointTraining(base.model, heads, data.draft_ids, settings, joint, bf16)

    def write(directory: Path, tree: Tree | None, card: dict[str, Any]) -> None:
        module.follow_base()
        model = base.model if lora is None else lora.merge_and_unload()
        save_joint(
            model,
            base.tokenizer,
            heads,
            directory,
            draft_ids=data.draft_ids,
            standalone=config.standalone,
            tree=tree,
            card=card,
        )

    return Job(module=module, levels=settings.heads, deepest=settings.heads, write=write)


def _freeze(config: TrainConfig, base: LoadedBase, data: TrainingData, layers: Sequence[int]) -> FrozenBase:
    if config.feature_cache is None:
        return FrozenBase(base.model, feature_layers=layers)
    store = FeatureStore(config.feature_cache, [*data.train, *data.held_out], base.fingerprint)
    return FrozenBase(base.model, feature_layers=layers, store=store)
