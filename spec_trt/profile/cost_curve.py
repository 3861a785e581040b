"""c(n): what a verify pass costs by nodes, past and batch; and how quickly prompts are read."""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from spec_trt.errors import ConfigError
from spec_trt.runtime.costs import VerifyCost
from spec_trt.runtime.engine import Engine
from spec_trt.runtime.engine_size import has_fixed_cache
from spec_trt.runtime.target import Target
from spec_trt.runtime.tree import Tree, TreeBuilder

__all__ = [
    "CurveConfig",
    "CurveTimer",
    "PassTimer",
    "Size",
    "Track",
    "chain",
    "fill",
    "in_a_thread",
    "measure_prefill",
    "measure_verify",
    "sizes",
]

_LEAST_ROUNDS = 3
_SETTLING_S = 0.25  # passes of one node go on for this long until one is as quick as plain decoding's
_IN_A_ROW = 3  # passes of a size in a round, as far as they are short
_SHORT_S = 0.03  # of a pass: longer ones are timed once in a round
_LARGEST_PASS = 512  # nodes of all sequences: more is no decoding any more

Item = TypeVar("Item")
Found = TypeVar("Found")
Track = Callable[[Iterable[Item], str], Iterable[Item]]
"""Goes through the parts of a task, given its name: for a progress bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveConfig:
    """Which passes are measured.

    Attributes:
        nodes: Of each sequence's tree.
        pasts: Committed rows of each sequence. By default they lie in the middle of the steps that a cache grows by, as
            a pass reads all the rows that its cache has room for.
        batches: Sequences.
        rounds: Of each size at the most.
        seconds: After which a batch and past get no more of them.
        slow_s: Seconds of a pass that nobody would decode with: no larger one is measured.

    Raises:
        ConfigError: A number is too small.
    """

    nodes: Sequence[int] = (1, 2, 4, 8, 16, 32, 64)
    pasts: Sequence[int] = (32, 480, 992)
    batches: Sequence[int] = (1, 4, 8)
    rounds: int = 20
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
    nodes = sorted({1, *(min(count, most) for count in config.nodes)})  # 1 is what the others are compared with
    room = engine.max_length - nodes[-1]
    pasts = sorted({past for past in config.pasts if past <= room} or {max(room, 1)})
    batches = sorted({min(batch, engine.max_batch) for batch in config.batches})
    return [
        Size(batch=batch, past=past, nodes=[count for count in nodes if count * batch <= _LARGEST_PASS] or nodes[:1])
        for batch in batches
        for past in pasts
    ]


def measure_verify(engine: Engine, config: CurveConfig, track: Track[Size], begun: "CurveTimer") -> list[VerifyCost]:
    """The median cost of every size.

    Args:
        engine: The engine.
        config: What to measure.
        track: Goes through the batches and pasts.
        begun: The timer of the smallest batch, which has been at it meanwhile.
    """
    found: list[VerifyCost] = []
    for size in track(sizes(engine, config), "verify passes"):
        if size.batch == begun.batch:
            found += begun.costs(size.past)
            continue
        timer = PassTimer(engine.new_target(batch=size.batch), size, config)
        timer.finish()
        found += timer.costs()
    return found


class CurveTimer:
    """Times the passes of the smallest batch, a round whenever it is asked to.

    So these costs are of the same minutes as the generations that are held against them: a shared machine's speed is
    another one by the minute.

    Attributes:
        batch: The batch.

    Args:
        engine: The engine.
        config: What to measure.
    """

    def __init__(self, engine: Engine, config: CurveConfig) -> None:
        of_all = sizes(engine, config)
        self.batch = of_all[0].batch
        shared = engine.new_target(batch=self.batch) if has_fixed_cache(engine.manifest) else None
        self._timers = {
            size.past: PassTimer(shared or engine.new_target(batch=self.batch), size, config)
            for size in of_all
            if size.batch == self.batch
        }

    def round(self) -> None:
        """Time every size some more times."""
        for timer in self._timers.values():
            timer.round()

    def costs(self, past: int) -> list[VerifyCost]:
        """The medians at a past, of a few rounds at the least."""
        self._timers[past].finish()
        return self._timers[past].costs()


class PassTimer:
    """Times the passes of one batch and past.

    The sizes take turns, so that a busy moment hits all alike; the smaller ones come first, behind passes of one node
    that are not counted. As in plain decoding, a pass of one node is to follow many of its kind: behind one of 64
    nodes, those of the next quarter of a second take up to a sixth longer, be they 30 in int8 or 10 in fp32.

    Args:
        target: The model, its cache for this timer.
        size: The passes.
        config: How long to be at it.
    """

    def __init__(self, target: Target, size: Size, config: CurveConfig) -> None:
        self._target, self._size, self._config = target, size, config
        self._times: dict[int, list[float]] = {}
        self._rounds = 0

    def round(self) -> None:
        """Time every size some times."""
        in_a_thread(self._round)

    def _round(self) -> None:
        fill(self._target, self._size.past)
        if not self._times:
            self._times = {count: [] for count in self._affordable()}
        settled = time.perf_counter() + _SETTLING_S
        while time.perf_counter() < settled:
            self._seconds(self._size.nodes[0])
        for count, found in self._times.items():
            found.append(self._seconds(count))
            if found[-1] < _SHORT_S:
                found += [self._seconds(count) for _ in range(_IN_A_ROW - 1)]
        self._rounds += 1

    def _affordable(self) -> list[int]:
        """Run every size for the first time, up to the first slow one."""
        found = []
        for count in self._size.nodes:
            found.append(count)
            if self._seconds(count) > self._config.slow_s:
                break
        return found

    def _seconds(self, nodes: int) -> float:
        trees = [chain(nodes)] * self._size.batch
        started = time.perf_counter()
        self._target.verify(trees)
        return time.perf_counter() - started

    def finish(self) -> None:
        """Go on until there are rounds enough, or the time is up and there are a few."""
        deadline = time.perf_counter() + self._config.seconds
        while self._rounds < self._config.rounds:
            if self._rounds >= _LEAST_ROUNDS and time.perf_counter() > deadline:
                break
            self.round()

    def costs(self) -> list[VerifyCost]:
        """The medians so far."""
        return [
            VerifyCost(batch=self._size.batch, nodes=count, past=self._size.past, ms=1e3 * median(found))
            for count, found in self._times.items()
        ]


def in_a_thread(measure: Callable[[], Found]) -> Found:
    """Measure where the decode loop runs its passes: in a thread other than the main one.

    ONNX Runtime takes memory many times per operator. What imports leave of the main thread's heap is in pieces, and
    finding room there makes a pass of this project's own demo take 6 to 9 % longer.
    """
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(measure).result()


def fill(target: Target, past: int) -> None:
    """Let all sequences of a target have so many committed rows, of zeros that are in memory."""
    if (target.cache.lengths != past).any():
        target.cache.lengths[:] = 0
        target.cache.fit(past + 1)
        target.cache.lengths[:] = past


def chain(nodes: int) -> Tree:
    """A tree of any tokens: what a pass costs depends on its size alone."""
    builder = TreeBuilder(0)
    builder.add_chain(0, [0] * (nodes - 1))
    return builder.build()


def measure_prefill(engine: Engine, tokens: int, repeats: int = 3) -> float:
    """Tokens per second at which a prompt is read, the median of some runs."""
    target, prompt = engine.new_target(), [0] * min(tokens, engine.max_length - 1)

    def seconds() -> float:
        started = time.perf_counter()
        target.prefill(prompt)
        return time.perf_counter() - started

    times = [in_a_thread(seconds) for _ in range(repeats + 1)]
    return len(prompt) / median(times[1:])
