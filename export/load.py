"""Load a model and its tokenizer: whole, in one data type, or not at all."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import cached_file, has_file
from transformers.utils.hub import extract_commit_hash

from spec_trt.errors import ModelError
from spec_trt.export.architecture import Architecture, inspect_architecture, use_tree_attention
from spec_trt.export.config import Dtype
from spec_trt.export.quiet import quiet
from spec_trt.export.source import Source
from spec_trt.heads.medusa_checkpoint import is_medusa_key

__all__ = ["TORCH_DTYPES", "LoadedModel", "load_config", "load_model"]

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")
TORCH_DTYPES: dict[Dtype, torch.dtype] = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model ready to be traced, and what the bundle keeps beside its graph.

    Attributes:
        model: In eval mode, its attention the tree's.
        architecture: Its dimensions.
        tokenizer: None where it has none.
        eos_ids: Every id that ends a text.
        revision: The hub's commit.
        medusa: The directory that holds its checkpoint, if there are Medusa heads in it too (a Medusa-2 model).
    """

    model: PreTrainedModel
    architecture: Architecture
    tokenizer: PreTrainedTokenizerBase | None
    eos_ids: list[int]
    revision: str | None
    medusa: Path | None


def load_model(source: Source, dtype: Dtype) -> LoadedModel:
    """Check the architecture, then load weights and tokenizer.

    Args:
        source: Where the model is.
        dtype: The data type of all weights.

    Raises:
        ModelError: The model is absent, unsupported, or its checkpoint does not fit it.
    """
    source = _pin(source)
    architecture = inspect_architecture(load_config(source))
    model, has_heads = _load_weights(source, dtype)
    tokenizer = _load_tokenizer(source)
    return LoadedModel(
        model=model,
        architecture=architecture,
        tokenizer=tokenizer,
        eos_ids=_eos_ids(model, tokenizer),
        revision=source.revision,
        medusa=_checkpoint_directory(source) if has_heads else None,
    )


def _pin(source: Source) -> Source:
    """Resolve a hub id to a commit, so that all files are of the same one."""
    if Path(source.path).is_dir():
        return source
    with _named_errors(source):
        return replace(source, revision=extract_commit_hash(cached_file(source.path, "config.json"), None))


def load_config(source: Source) -> PreTrainedConfig:
    """Read a model's configuration alone.

    Raises:
        ModelError: It is absent or damaged.
    """
    with _named_errors(source):
        config: PreTrainedConfig = AutoConfig.from_pretrained(**_arguments(source))
    return config


def _load_weights(source: Source, dtype: Dtype) -> tuple[PreTrainedModel, bool]:
    """Load every weight; transformers itself only warns of one that is absent.

    Returns:
        The model, and whether the checkpoint holds Medusa heads beside it.
    """
    with _named_errors(source):
        model, report = AutoModelForCausalLM.from_pretrained(
            **_arguments(source),
            dtype=TORCH_DTYPES[dtype],
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are in the report, by name
        )
    unexpected = [key for key in report["unexpected_keys"] if not is_medusa_key(key)]
    faults = {
        "missing": report["missing_keys"],
        "unexpected": unexpected,
        "of another shape": [name for name, *_ in report["mismatched_keys"]],
        "in error": report["error_msgs"],
    }
    found = [f"{len(keys)} {fault} ({_shorten(sorted(keys))})" for fault, keys in faults.items() if keys]
    if found:
        raise ModelError(f"the checkpoint {source.name} does not fit its configuration: {'; '.join(found)}")
    has_heads = len(unexpected) < len(report["unexpected_keys"])
    return use_tree_attention(model).eval().requires_grad_(False), has_heads


def _checkpoint_directory(source: Source) -> Path:
    if Path(source.path).is_dir():
        return Path(source.path)
    return Path(cached_file(source.path, "config.json", revision=source.revision)).parent


def _load_tokenizer(source: Source) -> PreTrainedTokenizerBase | None:
    """Load the tokenizer, or None where the model has no files of one.

    transformers would make up an empty tokenizer for some families.
    """
    with _named_errors(source):
        if source.gguf_file is None and not any(
            has_file(source.path, name, revision=source.revision) for name in _TOKENIZER_FILES
        ):
            return None
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(**_arguments(source))
    return tokenizer


def _eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> list[int]:
    """Every id that ends a text: chat models name their end-of-turn token in one place or another."""
    places: Sequence[Any] = (model.generation_config, model.config, tokenizer)
    given = [getattr(place, "eos_token_id", None) for place in places]
    ids = {token for entry in given for token in (entry if isinstance(entry, list) else [entry])}
    return sorted(token for token in ids if token is not None)


def _arguments(source: Source) -> dict[str, Any]:
    optional = {"gguf_file": source.gguf_file, "revision": source.revision}
    given = {name: value for name, value in optional.items() if value is not None}
    return {"pretrained_model_name_or_path": source.path, "trust_remote_code": False, **given}


def _shorten(keys: Sequence[str], limit: int = 4) -> str:
    more = f", and {len(keys) - limit} more" if len(keys) > limit else ""
    return ", ".join(keys[:limit]) + more


@contextmanager
def _named_errors(source: Source) -> Iterator[None]:
    """Turn whatever transformers raises on a bad checkpoint into one clear line."""
    try:
        with quiet():
            yield
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(f"cannot load {source.name}: {reason}") from error
