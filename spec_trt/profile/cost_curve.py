"""c(n): what a verify pass costs by nodes, past and batch; and how quickly prompts are read."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from spec_trt.errors import ConfigError
from spec_trt.runtime.costs import VerifyCost
from spec_trt.runtime.engine import Engine
from spec_trt.runtime.target import Target
from spec_trt.runtime.tree import Tree, TreeBuilder

__all__ = ["CurveConfig", "Size", "Track", "chain", "fill", "measure_prefill", "measure_verify", "sizes"]

_LEAST_ROUNDS = 3
_QUICK_S = 0.1  # a slower pass is not noticeably slower behind one of another size
_LARGEST_PASS = 512  # nodes of all sequences: more is no decoding any more

Item = TypeVar("Item")
Track = Callable[[Iterable[Item], str], Iterable[Item]]
"""Goes through the parts of a task, given its name: for a progress bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveConfig:
    """Which passes are measured.

    Attributes:
        nodes: Of each sequence's tree.
        pasts: Committed rows of each sequence.
        batches: Sequences.
        rounds: Runs of each size at the most.
        seconds: After which the runs of a batch and past get no more.
        slow_s: Seconds of a pass that nobody would decode with: no larger one is measured.

    Raises:
        ConfigError: A number is too small.
    """

    nodes: Sequence[int] = (1, 2, 4, 8, 16, 32, 64)
    pasts: Sequence[int] = (64, 512, 1024)
    batches: Sequence[int] = (1, 4, 8)
    rounds: int = 15
    seconds: float = 5.0
    slow_s: float = 1.0

    def __post_init__(self) -> None:
        for option, values, least in (("nodes", self.nodes, 1), ("past", self.pasts, 0), ("batch", self.batches, 1)):
            if min(values, default=least - 1) < least:
                raise ConfigError(f"--{option} takes numbers from {least} on, found {list(values)}: give such")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The passes of a batch and past: `nodes` are their trees' sizes, ascending."""

    batch: int
    past: int
    nodes: Sequence[int]


def sizes(engine: Engine, config: CurveConfig) -> list[Size]:
    """What of the sizes asked for the engine has room for, and is of use; at least the smallest past and batch."""
    built = engine.manifest.engine.tensorrt if engine.manifest.engine else None
    most = min(max(config.nodes), built.max_nodes) if built else max(config.nodes)
    nodes = sorted({min(count, most) for count in config.nodes})
    room = engine.max_length - nodes[-1]
    pasts = sorted({past for past in config.pasts if past <= room} or {max(room, 1)})
    batches = sorted({min(batch, engine.max_batch) for batch in config.batches})
    return [
        Size(batch=batch, past=past, nodes=[count for count in nodes if count * batch <= _LARGEST_PASS] or nodes[:1])
        for batch in batches
        for past in pasts
    ]


def measure_verify(engine: Engine, config: CurveConfig, track: Track[Size]) -> list[VerifyCost]:
    """The median cost of every size.

    The sizes of a batch and past take turns, so that a busy moment hits all alike. Each is run untimed first: the pass
    before was of another size, which decoding's seldom is.

    Args:
        engine: The engine.
        config: What to measure.
        track: Goes through the batches and pasts.
    """
    found: list[VerifyCost] = []
    target: Target | None = None
    for size in track(sizes(engine, config), "verify passes"):
        if target is None or target.cache.batch != size.batch:
            target = None  # the earlier one's cache is given back first
            target = engine.new_target(batch=size.batch)
        fill(target, size.past)
        found += _measure(target, size, config)
    return found


def fill(target: Target, past: int) -> None:
    """Let all sequences of a target have so many committed rows, of zeros that are in memory."""
    target.cache.lengths[:] = 0
    target.cache.fit(past + 1)
    target.cache.lengths[:] = past


def _measure(target: Target, size: Size, config: CurveConfig) -> list[VerifyCost]:
    trees = {count: [chain(count)] * size.batch for count in size.nodes}
    times: dict[int, list[float]] = {count: [] for count in _affordable(target, trees, config.slow_s)}
    deadline = time.perf_counter() + config.seconds
    for number in range(config.rounds):
        if number >= _LEAST_ROUNDS and time.perf_counter() > deadline:
            break
        for count, found in times.items():
            if not found or found[-1] < _QUICK_S:
                target.verify(trees[count])
            found.append(_seconds(target, trees[count]))
    return [
        VerifyCost(batch=size.batch, nodes=count, past=size.past, ms=1e3 * median(found))
        for count, found in times.items()
    ]


def _affordable(target: Target, trees: Mapping[int, Sequence[Tree]], slow_s: float) -> list[int]:
    """Run every size once, up to the first slow one."""
    found = []
    for count, tree in trees.items():
        found.append(count)
        if _seconds(target, tree) > slow_s:
            break
    return found


def _seconds(target: Target, trees: Sequence[Tree]) -> float:
    started = time.perf_counter()
    target.verify(trees)
    return time.perf_counter() - started


def chain(nodes: int) -> Tree:
    """A tree of any tokens: what a pass costs depends on its size alone."""
    builder = TreeBuilder(0)
    builder.add_chain(0, [0] * (nodes - 1))
    return builder.build()


def measure_prefill(engine: Engine, tokens: int, repeats: int = 3) -> float:
    """Tokens per second at which a prompt is read, the median of some runs."""
    target, prompt = engine.new_target(), [0] * min(tokens, engine.max_length - 1)
    times = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        target.prefill(prompt)
        times.append(time.perf_counter() - started)
    return len(prompt) / median(times[1:])
