"""The settings of a TensorRT build, every choice made."""

from dataclasses import dataclass
from pathlib import Path

from spec_trt.builder.config import BuildConfig
from spec_trt.errors import ConfigError
from spec_trt.manifest import ModelFacts

__all__ = ["TensorRtSettings", "choose_settings"]

_MAX_NODES = 64
_OPT_BATCH = 1  # one user at a time: larger batches are for throughput, and run well when tuned for less
_OPT_NODES = 16
_PREFILL_CHUNK = 256
_MAX_LENGTH = 4096
_LARGEST_CACHE_BYTES = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRtSettings:
    """As `TensorRtOptions`, with nothing left open."""

    attention: str
    max_batch: int
    max_nodes: int
    opt_batch: int
    opt_nodes: int
    prefill_chunk: int
    max_length: int
    workspace_bytes: int | None
    timing_cache: Path | None


def choose_settings(config: BuildConfig, model: ModelFacts) -> TensorRtSettings:
    """Fill in what was left open, and check the rest against the model.

    Raises:
        ConfigError: A size does not fit the model or another one.
    """
    given = config.tensorrt
    max_length = given.max_length or min(_MAX_LENGTH, model.max_positions)
    max_nodes = given.max_nodes or min(_MAX_NODES, max_length)
    settings = TensorRtSettings(
        attention=given.attention or "plugin",
        max_batch=given.max_batch or 1,
        max_nodes=max_nodes,
        opt_batch=given.opt_batch or _OPT_BATCH,
        opt_nodes=given.opt_nodes or min(_OPT_NODES, max_nodes),
        prefill_chunk=given.prefill_chunk or min(_PREFILL_CHUNK, max_length),
        max_length=max_length,
        workspace_bytes=given.workspace_bytes,
        timing_cache=given.timing_cache,
    )
    _check_sizes(settings, model)
    cache = settings.timing_cache
    if cache is not None and (cache.is_dir() or not cache.parent.is_dir()):
        raise ConfigError(f"--timing-cache {cache} can't be written: expected a file in a directory that exists")
    return settings


def _check_sizes(settings: TensorRtSettings, model: ModelFacts) -> None:
    if settings.max_length > model.max_positions:
        raise ConfigError(
            f"--max-length {settings.max_length} is beyond the model's context of {model.max_positions} positions"
        )
    for option, size in (("--max-nodes", settings.max_nodes), ("--prefill-chunk", settings.prefill_chunk)):
        if size > settings.max_length:
            raise ConfigError(
                f"{option} {size} is beyond --max-length {settings.max_length}: a pass can't have more nodes"
            )
    for name in ("nodes", "batch"):
        optimal, largest = getattr(settings, f"opt_{name}"), getattr(settings, f"max_{name}")
        if optimal > largest:
            raise ConfigError(f"--opt-{name} {optimal} is beyond --max-{name} {largest}")
    row_bytes = 2 * model.layers * model.kv_heads * model.head_dim * (4 if model.dtype == "fp32" else 2)
    cache_bytes = settings.max_batch * settings.max_length * row_bytes
    if cache_bytes > _LARGEST_CACHE_BYTES:
        raise ConfigError(
            f"--max-batch {settings.max_batch} with --max-length {settings.max_length} needs a cache of "
            f"{cache_bytes / 1e9:,.0f} GB, more than any GPU has: choose smaller ones"
        )
