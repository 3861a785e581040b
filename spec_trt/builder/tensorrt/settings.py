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
    if max_length > model.max_positions:
        raise ConfigError(f"--max-length {max_length} is beyond the model's context of {model.max_positions} positions")
    max_nodes = given.max_nodes or min(_MAX_NODES, max_length)
    prefill_chunk = given.prefill_chunk or min(_PREFILL_CHUNK, max_length)
    for option, size in (("--max-nodes", max_nodes), ("--prefill-chunk", prefill_chunk)):
        if size > max_length:
            raise ConfigError(f"{option} {size} is beyond --max-length {max_length}: a pass can't have more nodes")
    opt_nodes = given.opt_nodes or min(_OPT_NODES, max_nodes)
    max_batch, opt_batch = given.max_batch or 1, given.opt_batch or _OPT_BATCH
    for name, optimal, largest in (("nodes", opt_nodes, max_nodes), ("batch", opt_batch, max_batch)):
        if optimal > largest:
            raise ConfigError(f"--opt-{name} {optimal} is beyond --max-{name} {largest}")
    return TensorRtSettings(
        attention=given.attention or "plugin",
        max_batch=max_batch,
        max_nodes=max_nodes,
        opt_batch=opt_batch,
        opt_nodes=opt_nodes,
        prefill_chunk=prefill_chunk,
        max_length=max_length,
        workspace_bytes=given.workspace_bytes,
        timing_cache=given.timing_cache,
    )
