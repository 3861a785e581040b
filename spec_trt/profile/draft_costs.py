"""What a trained head's drafts cost, told apart by what they are made of."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import torch

from spec_trt.profile.cost_curve import chain, fill, in_a_thread
from spec_trt.runtime.cache_memory import DTYPES
from spec_trt.runtime.costs import DraftCost
from spec_trt.runtime.draft_model import DraftModel, DraftStep
from spec_trt.runtime.drafters import METHODS
from spec_trt.runtime.engine import Engine
from spec_trt.runtime.medusa_model import MedusaModel
from spec_trt.runtime.target import Target

__all__ = ["HeadParts", "draft_costs", "measure_heads"]

_LEVEL_NODES = (1, 2, 4, 8)
_ACCEPTED = 2  # rows that the target adds to a draft's cache per pass, about
_VERIFIED = 8  # nodes of the passes in between


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadParts:
    """Milliseconds of a head, whose graph takes turns with the target's.

    Attributes:
        fixed_ms: Of a pass, whatever is drafted.
        level_ms: Of a further level.
        node_ms: Of a node that is drafted behind.
        switch_ms: What the verify pass behind it takes longer than behind another one: threads and caches are not its.
    """

    fixed_ms: float
    level_ms: float = 0.0
    node_ms: float = 0.0
    switch_ms: float = 0.0


def draft_costs(pass_ms: Mapping[str, float], heads: Mapping[str, HeadParts]) -> dict[str, DraftCost]:
    """Every method's cost: its passes' as they were in generations, its parts' as its head's were by themselves.

    Args:
        pass_ms: By method, the mean.
        heads: By the head's name.
    """
    costs = {}
    for method, ms in pass_ms.items():
        parts = heads.get(METHODS[method].head or "")
        costs[method] = DraftCost(pass_ms=ms) if parts is None else _cost(ms, parts)
    return costs


def _cost(pass_ms: float, parts: HeadParts) -> DraftCost:
    return DraftCost(
        pass_ms=pass_ms + parts.switch_ms,
        fixed_ms=parts.fixed_ms + parts.switch_ms,
        level_ms=parts.level_ms,
        node_ms=parts.node_ms,
    )


def measure_heads(engine: Engine, past: int, rounds: int = 15) -> dict[str, HeadParts]:
    """Measure the engine's heads, by name.

    Args:
        engine: The engine.
        past: Committed rows, of a draft model's cache too.
        rounds: Runs of each size.
    """
    return in_a_thread(lambda: _measured(engine, past, rounds))


def _measured(engine: Engine, past: int, rounds: int) -> dict[str, HeadParts]:
    heads, found = engine.new_heads(), {}
    if heads.medusa is None and heads.eagle is None:
        return {}
    target, past = engine.new_target(), min(max(past, 1), engine.max_length - _VERIFIED)
    fill(target, past)
    if heads.medusa is not None:
        found["medusa"] = _in_turn(target, _medusa_run(heads.medusa, engine, target.cache.buffer.device), rounds)
    if heads.eagle is not None:
        found["eagle"] = _eagle_parts(target, heads.eagle, engine, past, rounds)
    return found


def _in_turn(target: Target, run: Callable[[], object], rounds: int) -> HeadParts:
    """Let a head's run and a verify pass take turns, and two verify passes follow each other."""
    tree = [chain(_VERIFIED)]
    target.verify(tree)
    run()
    times = [
        (_seconds(run), _seconds(lambda: target.verify(tree)), _seconds(lambda: target.verify(tree)))
        for _ in range(rounds)
    ]
    fixed, behind, again = (1e3 * median(column) for column in zip(*times, strict=True))
    return HeadParts(fixed_ms=fixed, switch_ms=max(behind - again, 0.0))


def _medusa_run(model: MedusaModel, engine: Engine, device: torch.device) -> Callable[[], object]:
    facts = engine.manifest.model
    hidden = torch.zeros(1, facts.hidden, dtype=DTYPES[facts.dtype], device=device)

    def draft() -> None:
        model.take(hidden, 0)
        model.draft()

    return draft


def _eagle_parts(target: Target, model: DraftModel, engine: Engine, past: int, rounds: int) -> HeadParts:
    """Run the accepted rows, then one level behind some nodes: a line through the levels' times by their nodes."""
    facts, device = engine.manifest.model, model.cache.buffer.device
    built = engine.manifest.engine.tensorrt if engine.manifest.engine else None
    counts = [count for count in _LEVEL_NODES if built is None or count <= built.max_nodes]
    features = {
        name: torch.zeros(_ACCEPTED, facts.hidden, dtype=DTYPES[facts.dtype], device=device) for name in model.needs
    }
    model.reset(past)

    def extend() -> DraftStep:
        model.cache.lengths[:] = past
        model.take(features, range(_ACCEPTED), [0] * _ACCEPTED)
        return model.extend()

    parts, step = _in_turn(target, extend, rounds), extend()
    levels = [_level_ms(model, step, count, rounds) for count in counts]
    slope, start = np.polyfit(counts, levels, 1).tolist()
    return replace(parts, level_ms=max(start, 0.0), node_ms=max(slope, 0.0))


def _level_ms(model: DraftModel, step: DraftStep, nodes: int, rounds: int) -> float:
    """A level follows a run of the same graph."""
    times = [_seconds(lambda: model.expand(step, [0] * nodes, [0] * nodes)) for _ in range(rounds + 1)]
    return 1e3 * median(times[1:])


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
