"""A whole profile: load, generate, measure, conclude."""

import gc
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from spec_trt.bench_report import BASELINE
from spec_trt.manifest import Manifest, load_manifest
from spec_trt.profile.acceptance import worth
from spec_trt.profile.break_even import Standing, break_even_table, standing
from spec_trt.profile.config import ProfileConfig
from spec_trt.profile.cost_curve import CurveTimer, Track, measure_prefill, measure_verify
from spec_trt.profile.draft_costs import draft_costs, measure_heads
from spec_trt.profile.generations import (
    MethodLatency,
    encode_prompts,
    latency,
    record_batch,
    record_methods,
)
from spec_trt.profile.kernels import KernelProfile, check_profiled, profile_kernels
from spec_trt.profile.machine import machine_line, peak_memory_bytes
from spec_trt.profile.overhead import Overhead, measure_overhead
from spec_trt.profile.prompts import BUILT_IN_PROMPTS
from spec_trt.profile.recording import Recording
from spec_trt.profile.report import Best, EngineLine, Profile
from spec_trt.profile.session_times import SessionRun, TimedBackend
from spec_trt.runtime.backend import open_backend
from spec_trt.runtime.costs import Costs
from spec_trt.runtime.engine import Engine
from spec_trt.runtime.generation import GenerationConfig

__all__ = ["Measured", "run_profile"]

_OVERHEAD_BATCHES = (1, 16)
_OVERHEAD_TOKENS = 24
_OVERHEAD_PROMPT = 32
_PREFILL_TOKENS = 512
_KERNEL_NODES = (1, 16)
_BUILT_IN_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A profile, and the steps that it was made of.

    Attributes:
        profile: The figures.
        recordings: The generations, pass by pass.
        runs: When the graphs ran meanwhile.
    """

    profile: Profile
    recordings: Sequence[Recording]
    runs: Sequence[SessionRun]


def run_profile(config: ProfileConfig, track: Track[Any] = lambda items, _name: items) -> Measured:
    """Profile an engine. The generations come first: what they take at the most is the engine's own.

    Args:
        config: What to profile.
        track: Goes through the parts of a longer task, given its name: for a progress bar.

    Raises:
        SpecTrtError: As `Engine.load`, and where a method or prompt can't be run.
    """
    manifest = load_manifest(config.engine, verify=config.verify)
    if config.kernels:
        check_profiled(manifest)
    started = time.perf_counter()
    opened = open_backend(
        config.engine, manifest, device=config.device, threads=config.threads, cuda_graphs=config.cuda_graphs
    )
    backend = TimedBackend(opened)
    with Engine.on_backend(config.engine, manifest, backend) as engine:
        load_s = time.perf_counter() - started
        with _old_objects_left_alone():
            return _measure(config, manifest, engine, backend, load_s, track)


@contextmanager
def _old_objects_left_alone() -> Iterator[None]:
    """Keep the garbage collector from going through all that was imported, in the middle of some generation."""
    if gc.get_freeze_count():  # somebody else sees to it
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _measure(
    config: ProfileConfig, manifest: Manifest, engine: Engine, backend: TimedBackend, load_s: float, track: Track[Any]
) -> Measured:
    started = time.perf_counter()
    prompts = _prompts(engine, config)
    tokenizer_load_s = time.perf_counter() - started
    runs_of = _runs_of(engine, config)
    meanwhile = _Meanwhile(backend, CurveTimer(engine, config.curve))
    seconds = math.inf if config.prompts else _BUILT_IN_SECONDS
    recordings = record_methods(engine, prompts, runs_of, track, between=meanwhile.round, seconds=seconds)
    runs = list(backend.runs)
    by_method = {name: [one for one in recordings if one.method == name] for name in runs_of}
    latencies = [latency(name, run.options, by_method[name]) for name, run in runs_of.items()]
    device = backend.device
    overhead = _overhead(engine, backend, prompts[0], track)
    past = round(_mean([one.past for recording in recordings for one in recording.passes]))
    costs = Costs(
        machine=machine_line(device),
        threads=config.threads,
        precision=engine.precision,
        verify=measure_verify(engine, config.curve, track, meanwhile.timer),
        draft=draft_costs({one.method: one.phase_ms["draft"].mean for one in latencies}, measure_heads(engine, past)),
        worth={name: worth(found) for name, found in by_method.items() if not runs_of[name].options},
        overhead_ms=max(overhead[0].besides_ms, 0.0),
    )
    standings = _standings(recordings, latencies, costs)
    profile = Profile(
        engine=_engine_line(config, manifest),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        load_s=load_s,
        tokenizer_load_s=tokenizer_load_s,
        peak_memory_bytes=meanwhile.peak_memory_bytes,
        prefill_tokens_per_s=measure_prefill(engine, _PREFILL_TOKENS),
        overhead=overhead,
        costs=costs,
        prompts=len(recordings) // len(runs_of),
        max_new_tokens=config.max_new_tokens,
        methods=latencies,
        past=past,
        break_even=break_even_table(
            costs, past, sorted({cost.nodes for cost in costs.verify}), sorted({cost.batch for cost in costs.verify})
        ),
        standings=standings,
        best=_best(standings),
        kernels=_kernels(config, manifest, track, past),
    )
    return Measured(profile=profile, recordings=recordings, runs=runs)


class _Meanwhile:
    """What is measured between two prompts: a round of passes; and before it, the memory that generating took.

    Attributes:
        timer: Times the passes.
        peak_memory_bytes: After the first prompt, which is every method's first.
    """

    def __init__(self, backend: TimedBackend, timer: CurveTimer) -> None:
        self.timer, self.peak_memory_bytes = timer, 0
        self._backend = backend

    def round(self) -> None:
        """Go on."""
        self.peak_memory_bytes = self.peak_memory_bytes or peak_memory_bytes(self._backend.device)
        self.timer.round()


def _prompts(engine: Engine, config: ProfileConfig) -> list[list[int]]:
    """The prompts as tokens; built-in ones are cut to what the engine holds, others refused."""
    room = engine.max_length - config.max_new_tokens
    if config.prompts is None:
        return encode_prompts(engine, BUILT_IN_PROMPTS, raw=config.raw, room=room)
    prompts = encode_prompts(engine, config.prompts, raw=config.raw, room=engine.max_length)
    for prompt in prompts:
        engine.check_prompt(prompt)
    return prompts


def _runs_of(engine: Engine, config: ProfileConfig) -> dict[str, GenerationConfig]:
    """How each method generates, plain decoding first: trees of its own size, to the last token for as many steps."""
    methods = engine.methods if config.methods is None else config.methods
    return {
        name: GenerationConfig(
            method=name,
            options=config.options.get(name, {}),
            max_new_tokens=config.max_new_tokens,
            ignore_eos=True,
            budget="fixed",
        )
        for name in dict.fromkeys([BASELINE, *methods])
    }


def _overhead(engine: Engine, backend: TimedBackend, prompt: Sequence[int], track: Track[Any]) -> list[Overhead]:
    run = GenerationConfig(max_new_tokens=_OVERHEAD_TOKENS, ignore_eos=True, budget="fixed")
    found = []
    for batch in track(_OVERHEAD_BATCHES, "loop overhead"):
        begin = len(backend.runs)
        recordings = record_batch(engine, prompt[-_OVERHEAD_PROMPT:], run, batch)
        found.append(measure_overhead(recordings, backend.runs[begin:]))
    return found


def _standings(recordings: Sequence[Recording], latencies: Sequence[MethodLatency], costs: Costs) -> list[Standing]:
    plain = latencies[0].tokens_per_s
    batches = sorted({cost.batch for cost in costs.verify})
    return [
        standing(
            one.method,
            [drafted for recording in recordings if recording.method == one.method for drafted in recording.passes],
            costs,
            measured_speedup=one.tokens_per_s / plain,
            batches=batches,
        )
        for one in latencies
    ]


def _best(standings: Sequence[Standing]) -> Best:
    chosen = max(standings, key=lambda one: one.best.speedup)
    return Best(
        method=chosen.method,
        nodes=chosen.best.nodes,
        accept_length=chosen.best.accept_length,
        speedup=chosen.best.speedup,
        as_it_is=chosen.best.speedup <= chosen.predicted_speedup,
    )


def _kernels(config: ProfileConfig, manifest: Manifest, track: Track[Any], past: int) -> list[KernelProfile]:
    if not config.kernels:
        return []
    return [
        profile_kernels(config.engine, manifest, nodes=nodes, past=past, device=config.device, threads=config.threads)
        for nodes in track(_KERNEL_NODES, "operators")
    ]


def _engine_line(config: ProfileConfig, manifest: Manifest) -> EngineLine:
    built = manifest.engine
    assert built is not None  # an engine is open
    return EngineLine(
        name=config.engine.resolve().name,
        model=manifest.source.model,
        backend=built.backend,
        library_version=built.library_version,
        precision=built.precision,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
