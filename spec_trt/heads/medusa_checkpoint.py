"""Medusa heads from and to the public checkpoint formats: v1, v2, Medusa-2's full model, ModelOpt's.

They differ in the keys' prefix and in whether a head has a projection of its own: `{h}.{l}.linear.weight` and
`.bias` are residual blocks, `{h}.{L}.weight` behind the last block is a projection (v1, Medusa-2), which is the
target's where there is none (v2). How many there are is counted, since published configs are wrong.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spec_trt.errors import ConfigError, ModelError
from spec_trt.heads.checkpoint import Checkpoint, read_checkpoint
from spec_trt.heads.checkpoint_tree import checkpoint_tree
from spec_trt.heads.draft_vocab import draft_ids_in, draft_vocab_of, needed_maps, offsets_of
from spec_trt.heads.medusa import MedusaConfig, MedusaHeads
from spec_trt.heads.projection import Projection
from spec_trt.heads.state import check_state, save_state, saved
from spec_trt.heads.target import HeadTarget

__all__ = [
    "LoadedMedusa",
    "check_standalone_medusa",
    "is_medusa_key",
    "load_medusa",
    "medusa_model_tensors",
    "save_medusa",
]

SLIM_FILE = "medusa_lm_head.safetensors"
STANDALONE_FILE = "medusa_lm_head.pt"
_PREFIX = re.compile(r"medusa_heads?\.")
_BLOCK = re.compile(r"(\d+)\.(\d+)\.linear\.(?:weight|bias)")
_PROJECTION = re.compile(r"(\d+)\.(\d+)\.weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedMedusa:
    """Heads of a checkpoint.

    Attributes:
        heads: Of the target's data type.
        draft_ids: The target's id of each row, ascending; None where they are the same.
        tree: The static tree that the checkpoint names: paths of ranks.
        source: Where they came from: a name, never a path of this machine.
        notes: What was ignored, for the user.
    """

    heads: MedusaHeads
    draft_ids: list[int] | None
    tree: list[list[int]] | None
    source: str
    notes: list[str]


def is_medusa_key(name: str) -> bool:
    """Whether a key of a whole model's checkpoint belongs to Medusa heads."""
    return _PREFIX.match(name) is not None


def load_medusa(path: Path, target: HeadTarget) -> LoadedMedusa:
    """Load heads of any of the formats, detected from the keys.

    Args:
        path: A directory or a file of weights.
        target: The model that they draft for.

    Raises:
        ModelError: There are none, or they don't fit: every missing, unknown or misshapen key is named.
    """
    checkpoint = read_checkpoint(path, preferred=(SLIM_FILE, STANDALONE_FILE), choose=_choose)
    found = {_PREFIX.sub("", key, count=1): tensor for key, tensor in checkpoint.tensors.items()}
    config = _count(found, checkpoint, target)
    check_state(found, _needed(config, found, target.vocab), checkpoint.source, "Medusa")
    draft_ids = draft_ids_in(found, target.vocab, checkpoint.source)
    tree, notes = checkpoint_tree(checkpoint.config, config.heads)
    return LoadedMedusa(
        heads=_build(config, found, target, draft_ids),
        draft_ids=draft_ids,
        tree=tree,
        source=checkpoint.source,
        notes=[*checkpoint.notes, *notes],
    )


def save_medusa(
    heads: MedusaHeads,
    directory: Path,
    *,
    draft_ids: Sequence[int] | None,
    standalone: bool,
    tree: list[list[int]] | None = None,
    card: dict[str, Any] | None = None,
    dtype: torch.dtype = torch.float16,
    base: str | None = None,
) -> None:
    """Write heads as a checkpoint.

    Args:
        heads: To write.
        directory: An existing one.
        draft_ids: The target's id of each row, ascending; None for all.
        standalone: Whether every head gets a projection (Medusa v1: what other engines load), not only a trained one.
        tree: The static tree to name.
        card: How they were trained, kept in config.json.
        dtype: Of the weights.
        base: The target's name.

    Raises:
        ConfigError: `standalone`, and Medusa v1 can't express these heads.
    """
    if standalone:
        check_standalone_medusa(heads, draft_ids)
    tensors = saved(_tensors(heads, draft_ids, standalone=standalone), dtype)
    save_state(tensors, directory / (STANDALONE_FILE if standalone else SLIM_FILE))
    text = json.dumps(_described(heads, draft_ids, base, tree, card, standalone=standalone), indent=2)
    (directory / "config.json").write_text(text + "\n", encoding="utf-8")


def medusa_model_tensors(
    heads: MedusaHeads, draft_ids: Sequence[int] | None, dtype: torch.dtype, *, standalone: bool = False
) -> dict[str, Tensor]:
    """Heads as tensors to put among those of the model that was trained with them (Medusa-2).

    Args:
        heads: To write.
        draft_ids: The target's id of each row, ascending; None for all.
        dtype: Of the model's weights.
        standalone: Whether every head gets a projection (what other engines load), not only a trained one.

    Raises:
        ConfigError: `standalone`, and Medusa v1 can't express these heads.
    """
    if standalone:
        check_standalone_medusa(heads, draft_ids)
    tensors = saved(_tensors(heads, draft_ids, standalone=standalone), dtype)
    return {f"medusa_head.{key}": tensor for key, tensor in tensors.items()}


def _choose(keys: Sequence[str]) -> list[str]:
    """The heads' keys of a whole model, else all."""
    return [key for key in keys if is_medusa_key(key)] or list(keys)


def _count(found: Mapping[str, Tensor], checkpoint: Checkpoint, target: HeadTarget) -> MedusaConfig:
    """Heads and blocks, by their keys."""
    blocks = [match for match in map(_BLOCK.fullmatch, found) if match]
    if not blocks:
        raise ModelError(
            f"{checkpoint.source} holds no Medusa heads: expected keys such as 0.0.linear.weight, "
            f"found {', '.join(sorted(found)[:4]) or 'none'}"
        )
    projections = any(map(_PROJECTION.fullmatch, found))
    return MedusaConfig(
        hidden=target.hidden,
        heads=len({match[1] for match in blocks}),
        layers=len({match[2] for match in blocks}),
        draft_vocab=draft_vocab_of(checkpoint.config, found, target.vocab, checkpoint.source),
        shared_projection=not projections,
    )


def _needed(config: MedusaConfig, found: Mapping[str, Tensor], vocab: int) -> dict[str, list[int]]:
    blocks = {
        f"{head}.{layer}.linear.{name}": [config.hidden] * (2 if name == "weight" else 1)
        for head in range(config.heads)
        for layer in range(config.layers)
        for name in ("weight", "bias")
    }
    projections = {
        f"{head}.{config.layers}.weight": [config.draft_vocab, config.hidden] for head in range(config.heads)
    }
    maps = needed_maps(found, config.draft_vocab, vocab)
    return blocks | maps if config.shared_projection else blocks | projections | maps


def _build(
    config: MedusaConfig, found: Mapping[str, Tensor], target: HeadTarget, draft_ids: Sequence[int] | None
) -> MedusaHeads:
    base = target.projection
    dtype = base.weight.dtype
    own = [f"{head}.{config.layers}.weight" for head in range(config.heads)]
    if config.shared_projection:
        projections = [base.shared() if draft_ids is None else base.narrowed(draft_ids)]
    else:
        projections = [base.with_weight(found[key].to(dtype, copy=True)) for key in own]
    heads = MedusaHeads(config, projections).to(dtype)
    heads.heads.load_state_dict({key: tensor for key, tensor in found.items() if _BLOCK.fullmatch(key)})
    return heads.eval().requires_grad_(False)


def _tensors(heads: MedusaHeads, draft_ids: Sequence[int] | None, *, standalone: bool) -> dict[str, Tensor]:
    tensors = dict(heads.heads.state_dict()) | _projections(heads, standalone=standalone)
    return tensors if draft_ids is None else tensors | {"d2t": offsets_of(draft_ids)}


def _projections(heads: MedusaHeads, *, standalone: bool) -> dict[str, Tensor]:
    """One per head, under v1's keys: none where all use the target's, except in the standalone form."""
    count = heads.config.heads
    used = [_projection(heads, head) for head in range(count)]
    if not standalone and not any(projection.trained for projection in used):
        return {}
    return {f"{head}.{heads.config.layers}.weight": used[head].weight for head in range(count)}


def _projection(heads: MedusaHeads, head: int) -> Projection:
    projection = heads.projections[0 if heads.config.shared_projection else head]
    assert isinstance(projection, Projection)
    return projection


def check_standalone_medusa(heads: MedusaHeads, draft_ids: Sequence[int] | None) -> None:
    """Refuse what Medusa v1 can't express; worth asking before a long training.

    Raises:
        ConfigError: It has the whole vocabulary, and no bias.
    """
    if draft_ids is not None:
        raise ConfigError(
            f"standalone Medusa heads have the whole vocabulary, these have {len(draft_ids)} ids of it: "
            "train without a draft vocabulary, or write the slim form"
        )
    if any(_projection(heads, head).bias is not None for head in range(heads.config.heads)):
        raise ConfigError("standalone Medusa heads have no bias, the target's lm_head has: write the slim form")


def _described(
    heads: MedusaHeads,
    draft_ids: Sequence[int] | None,
    base: str | None,
    tree: list[list[int]] | None,
    card: dict[str, Any] | None,
    *,
    standalone: bool,
) -> dict[str, Any]:
    config = heads.config
    own = standalone or any(_projection(heads, head).trained for head in range(config.heads))
    described = {
        "version": "1" if own else "2",
        "medusa_num_heads": config.heads,
        "medusa_num_layers": config.layers,
        "hidden_size": config.hidden,
        "base_model_name_or_path": base,
        "draft_vocab_size": None if draft_ids is None else len(draft_ids),
        "tree": tree,
        "spec_trt_training": card,
    }
    return {key: value for key, value in described.items() if value is not None}
