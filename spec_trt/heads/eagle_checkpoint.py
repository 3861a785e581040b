"""An EAGLE draft from and to the public checkpoint formats: EAGLE, EAGLE-2, and EAGLE-3 in its four dialects.

The dialects call the first layer `midlayer.` (the reference, SpecForge) or `layers.0.` (ModelOpt, speculators); inside
it is `layers.0.`. What a draft needs is what its module's state dict holds: a checkpoint is compared with that.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from spec_trt.errors import ConfigError, ModelError
from spec_trt.heads.checkpoint import read_checkpoint
from spec_trt.heads.checkpoint_tree import checkpoint_tree
from spec_trt.heads.draft_vocab import draft_ids_in, needed_maps, offsets_of, presence_of
from spec_trt.heads.eagle import EagleConfig, EagleDraft
from spec_trt.heads.eagle_config_file import eagle_config_file
from spec_trt.heads.eagle_settings import read_settings
from spec_trt.heads.state import check_state, save_state, saved
from spec_trt.heads.target import HeadTarget

__all__ = ["LoadedEagle", "check_standalone_eagle", "load_eagle", "save_eagle"]

Value = TypeVar("Value")

WEIGHTS_FILE = "model.safetensors"
_EMBEDDING, _LM_HEAD, _OWN_ROWS = "embed_tokens.weight", "lm_head.weight", "projection.weight"
_FIRST, _MIDDLE = "layers.0.", "midlayer."


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedEagle:
    """A draft of a checkpoint.

    Attributes:
        draft: Of the target's data type.
        draft_ids: The target's id of each row, ascending; None where they are the same.
        tree: The static tree that the checkpoint names: paths of ranks.
        source: Where it came from: a name, never a path of this machine.
        notes: What was ignored or assumed, for the user.
    """

    draft: EagleDraft
    draft_ids: list[int] | None
    tree: list[list[int]] | None
    source: str
    notes: list[str]


def load_eagle(path: Path, target: HeadTarget) -> LoadedEagle:
    """Load a draft of any of the formats, detected from the keys.

    Args:
        path: A directory, or a file of weights with its config.json beside it.
        target: The model that it drafts for.

    Raises:
        ModelError: There is none, or it doesn't fit: every missing, unknown or misshapen key is named.
    """
    checkpoint = read_checkpoint(path)
    found = _renamed(checkpoint.tensors, _MIDDLE, _FIRST)
    _check_eagle(found, checkpoint.source)
    settings = read_settings(checkpoint, found, target)
    kind = "EAGLE" if settings.config.version == 1 else "EAGLE-3"
    needed = _needed(settings.config, found, target, checkpoint.source)
    if any(key.startswith(_MIDDLE) for key in checkpoint.tensors):
        needed = _renamed(needed, _FIRST, _MIDDLE)
    check_state(checkpoint.tensors, needed, checkpoint.source, kind)
    draft_ids = draft_ids_in(found, target.vocab, checkpoint.source)
    tree, notes = checkpoint_tree(checkpoint.config)
    return LoadedEagle(
        draft=_build(settings.config, found, target, draft_ids),
        draft_ids=draft_ids,
        tree=tree,
        source=checkpoint.source,
        notes=[*checkpoint.notes, *settings.notes, *notes],
    )


def save_eagle(
    draft: EagleDraft,
    directory: Path,
    *,
    draft_ids: Sequence[int] | None,
    standalone: bool,
    tree: list[list[int]] | None = None,
    card: dict[str, Any] | None = None,
    dtype: torch.dtype = torch.float16,
) -> None:
    """Write a draft as a checkpoint: EAGLE's keys, or those of the reference EAGLE-3.

    Args:
        draft: To write.
        directory: An existing one.
        draft_ids: The target's id of each row, ascending; None for all.
        standalone: Whether to write what other engines expect: the embedding too, and for EAGLE-3 the lm_head's rows
            and `t2d`. They run EAGLE on its target's whole vocabulary, so that form keeps no `draft_ids`.
        tree: The static tree to name.
        card: How it was trained, kept in config.json.
        dtype: Of the weights.

    Raises:
        ConfigError: `standalone`, and the public form can't express this draft.
    """
    state = _renamed(draft.state_dict(), _OWN_ROWS, _LM_HEAD)
    if standalone:
        check_standalone_eagle(draft)
        state |= _standalone(draft, draft_ids)
    elif draft_ids is not None:
        state["d2t"] = offsets_of(draft_ids)
    if draft.config.version == 3:
        state = _renamed(state, _FIRST, _MIDDLE)
    save_state(saved(state, dtype), directory / WEIGHTS_FILE)
    described = eagle_config_file(draft.config, len(draft.embedding))
    added = {
        "torch_dtype": str(dtype).removeprefix("torch."),
        "draft_vocab_size": draft.config.draft_vocab if "d2t" in state else None,
        "tree": tree,
        "spec_trt_training": card,
    }
    described |= {key: value for key, value in added.items() if value is not None}
    (directory / "config.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")


def _renamed(state: Mapping[str, Value], old: str, new: str) -> dict[str, Value]:
    return {new + key.removeprefix(old) if key.startswith(old) else key: value for key, value in state.items()}


def _check_eagle(found: Mapping[str, Tensor], source: str) -> None:
    if not any(key.startswith((_FIRST, "fc.")) for key in found):
        raise ModelError(
            f"{source} holds no EAGLE head: expected keys such as fc.weight and layers.0.self_attn.q_proj.weight or "
            f"midlayer.self_attn.q_proj.weight, found {', '.join(sorted(found)[:4]) or 'none'}"
        )


def _needed(config: EagleConfig, found: Mapping[str, Tensor], target: HeadTarget, source: str) -> dict[str, list[int]]:
    """Every tensor that there must be; what can be the target's only if it is there, or the target's doesn't fit."""
    try:
        with torch.device("meta"):
            module = EagleDraft(config, target.embedding, target.projection)
    except Exception as error:  # transformers names what it can't make of a config in many ways
        raise ModelError(f"{source} has a config that makes no sense: {' '.join(str(error).split())}") from error
    needed = {key: list(tensor.shape) for key, tensor in module.state_dict().items()}
    if _EMBEDDING in found or target.embedding.shape[1] != config.hidden:
        needed[_EMBEDDING] = [len(target.embedding), config.hidden]
    if _LM_HEAD in found or target.hidden != config.hidden:
        needed[_LM_HEAD] = [config.draft_vocab, config.hidden]
    return needed | needed_maps(found, config.draft_vocab, target.vocab)


def _build(
    config: EagleConfig, found: Mapping[str, Tensor], target: HeadTarget, draft_ids: Sequence[int] | None
) -> EagleDraft:
    base = target.projection
    dtype = base.weight.dtype
    if _LM_HEAD in found:
        projection = base.with_weight(found[_LM_HEAD].to(dtype, copy=True))
    else:
        projection = base.shared() if draft_ids is None else base.narrowed(draft_ids)
    draft = EagleDraft(config, found.get(_EMBEDDING, target.embedding).to(dtype), projection).to(dtype)
    draft.rotary = LlamaRotaryEmbedding(config.to_llama())  # positions need their frequencies in fp32
    draft.load_state_dict({_OWN_ROWS if key == _LM_HEAD else key: found[key] for key in _of_module(found)})
    return draft.eval().requires_grad_(False)


def _of_module(found: Mapping[str, Tensor]) -> list[str]:
    return [key for key in found if key not in (_EMBEDDING, "d2t", "t2d")]


def check_standalone_eagle(draft: EagleDraft) -> None:
    """Refuse what the public form can't express; worth asking before a long training.

    Raises:
        ConfigError: EAGLE drafts with its target's lm_head and has none of its own, EAGLE-3's has no bias.
    """
    if draft.config.version == 1 and draft.projection.trained:
        raise ConfigError("a standalone EAGLE head has no lm_head of its own, this one has: write the slim form")
    if draft.config.version == 3 and draft.projection.bias is not None:
        raise ConfigError("a standalone EAGLE-3 head has no bias, the target's lm_head has: write the slim form")


def _standalone(draft: EagleDraft, draft_ids: Sequence[int] | None) -> dict[str, Tensor]:
    """What other engines expect beside the layer. For EAGLE they know no reduced vocabulary, nor does it need one."""
    if draft.config.version == 1:
        return {_EMBEDDING: draft.embedding}
    maps = {"d2t": offsets_of(draft_ids), "t2d": presence_of(draft_ids, len(draft.embedding))} if draft_ids else {}
    return {_EMBEDDING: draft.embedding, _LM_HEAD: draft.projection.weight} | maps
