"""Speculation, verification and the KV cache across compiled graphs.

The dimensions that shapes are written with, everywhere:

    batch     sequences in one pass                 heads, kv_heads, head_dim   attention
    nodes     tokens of a tree in one pass          hidden, vocab, layers       the model
    rows      nodes whose logits are asked for      past      rows of the cache buffer
    window    columns of the tree mask              depth     distance of a node from its root
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spec_trt.runtime.engine import Engine
    from spec_trt.runtime.generation import Generation, GenerationConfig, Result
    from spec_trt.runtime.sampling import Sampling
    from spec_trt.runtime.scheduler import Scheduler, SchedulerConfig
    from spec_trt.runtime.stats import Stats

__all__ = [
    "Engine",
    "Generation",
    "GenerationConfig",
    "Result",
    "Sampling",
    "Scheduler",
    "SchedulerConfig",
    "Stats",
]

_HOMES = {
    "Engine": "engine",
    "Generation": "generation",
    "GenerationConfig": "generation",
    "Result": "generation",
    "Sampling": "sampling",
    "Scheduler": "scheduler",
    "SchedulerConfig": "scheduler",
    "Stats": "stats",
}


def __getattr__(name: str) -> object:
    """What embeds the runtime needs, loaded when it is asked for: a command's help needs no PyTorch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
