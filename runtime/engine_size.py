"""What an engine has room for, and what a token takes of it."""

import sys

from spec_trt.manifest import Manifest, TensorRtFacts
from spec_trt.runtime.cache_memory import DTYPES

__all__ = ["draft_row_bytes", "has_fixed_cache", "max_batch", "max_length", "target_row_bytes"]


def max_length(manifest: Manifest) -> int:
    """Tokens of a sequence at the most, prompt included: the model's context, or what the engine was built for."""
    built, longest = _built_for(manifest), manifest.model.max_positions
    return longest if built is None else min(longest, built.max_length)


def max_batch(manifest: Manifest) -> int:
    """Sequences of one pass at the most, as far as the engine was built for a number of them."""
    built = _built_for(manifest)
    return sys.maxsize if built is None else built.max_batch


def has_fixed_cache(manifest: Manifest) -> bool:
    """Whether every sequence's cache has room for `max_length` tokens from the start."""
    return _built_for(manifest) is not None


def target_row_bytes(manifest: Manifest) -> int:
    """Memory of one token in the target's cache."""
    model = manifest.model
    return 2 * model.layers * model.kv_heads * model.head_dim * DTYPES[model.dtype].itemsize


def draft_row_bytes(manifest: Manifest) -> int:
    """Memory of one token in a draft model's cache; 0 without one."""
    eagle = manifest.heads.eagle
    if eagle is None:
        return 0
    return 2 * eagle.layers * eagle.kv_heads * eagle.head_dim * DTYPES[manifest.model.dtype].itemsize


def _built_for(manifest: Manifest) -> TensorRtFacts | None:
    return manifest.engine.tensorrt if manifest.engine else None
