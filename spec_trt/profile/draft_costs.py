"""What a trained head's drafts cost, told apart by what they are made of."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import torch

from spec_trt.runtime.cache_memory import DTYPES
from spec_trt.runtime.costs import DraftCost
from spec_trt.runtime.draft_model import DraftModel
from spec_trt.runtime.drafters import METHODS
from spec_trt.runtime.engine import Engine
from spec_trt.runtime.medusa_model import MedusaModel

__all__ = ["HeadParts", "draft_costs", "measure_heads"]

_LEVEL_NODES = (1, 2, 4, 8)
_ACCEPTED = 2  # rows that the target adds to a draft's cache per pass, about


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadParts:
    """Milliseconds of a head: of a pass whatever is drafted, of a further level, of a node drafted behind."""

    fixed_ms: float
    level_ms: float = 0.0
    node_ms: float = 0.0


def draft_costs(pass_ms: Mapping[str, float], heads: Mapping[str, HeadParts]) -> dict[str, DraftCost]:
    """Every method's cost: its passes' as they were in generations, its parts' as its head's were by themselves.

    Args:
        pass_ms: By method, the mean.
        heads: By the head's name.
    """
    costs = {}
    for method, ms in pass_ms.items():
        parts = heads.get(METHODS[method].head or "")
        cost = DraftCost(pass_ms=ms)
        if parts is not None:
            cost = replace(cost, fixed_ms=parts.fixed_ms, level_ms=parts.level_ms, node_ms=parts.node_ms)
        costs[method] = cost
    return costs


def measure_heads(engine: Engine, past: int, rounds: int = 15) -> dict[str, HeadParts]:
    """Measure the engine's heads, by name.

    Args:
        engine: The engine.
        past: Rows of a draft model's cache.
        rounds: Runs of each size.
    """
    heads, found = engine.new_heads(), {}
    if heads.medusa is not None:
        found["medusa"] = _medusa_parts(heads.medusa, engine, rounds)
    if heads.eagle is not None:
        found["eagle"] = _eagle_parts(heads.eagle, engine, min(past, engine.max_length - 8 * (rounds + 1)), rounds)
    return found


def _medusa_parts(model: MedusaModel, engine: Engine, rounds: int) -> HeadParts:
    hidden = torch.zeros(engine.manifest.model.hidden, dtype=DTYPES[engine.manifest.model.dtype])
    model.take(hidden)
    return HeadParts(fixed_ms=_median_ms(model.draft, rounds))


def _eagle_parts(model: DraftModel, engine: Engine, past: int, rounds: int) -> HeadParts:
    """Run the accepted rows, then one level behind some nodes: a line through the levels' times by their nodes."""
    facts, device = engine.manifest.model, model.cache.buffer.device
    built = engine.manifest.engine.tensorrt if engine.manifest.engine else None
    nodes = [count for count in _LEVEL_NODES if built is None or count <= built.max_nodes]
    features = {
        name: torch.zeros(_ACCEPTED, facts.hidden, dtype=DTYPES[facts.dtype], device=device) for name in model.needs
    }
    past = max(past, 1)
    model.reset(past)
    model.cache.lengths[:] = past

    def extend() -> None:
        model.cache.lengths[:] = past
        model.take(features, range(_ACCEPTED), [0] * _ACCEPTED)
        model.extend()

    fixed_ms = _median_ms(extend, rounds)
    step = model.extend()
    levels = [
        _median_ms(lambda count=count: model.expand(step, [0] * count, [0] * count), rounds)  # type: ignore[misc]
        for count in nodes
    ]
    slope, start = np.polyfit(nodes, levels, 1).tolist()
    return HeadParts(fixed_ms=fixed_ms, level_ms=max(start, 0.0), node_ms=max(slope, 0.0))


def _median_ms(run: Callable[[], object], rounds: int) -> float:
    run()
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return 1e3 * median(times)
