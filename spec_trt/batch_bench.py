"""Throughput: methods side by side at several numbers of requests in flight."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from spec_trt.batch_bench_report import BatchReport, BatchRound, BatchScore
from spec_trt.bench import WARM_UP_TOKENS, BenchConfig, compare_with_plain, first_prompts
from spec_trt.bench_report import BASELINE
from spec_trt.errors import ConfigError
from spec_trt.prompts import PromptRecord
from spec_trt.runtime.engine import Engine
from spec_trt.runtime.generation import Result
from spec_trt.runtime.sampling import Sampling
from spec_trt.runtime.scheduler import Scheduler, SchedulerConfig
from spec_trt.runtime.stats import Stats

__all__ = ["check_batches", "planned_answers", "run_batch_bench"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Served:
    """All prompts, answered once.

    Attributes:
        name: By which method, and budget where there are several.
        batch: With how many requests in flight.
        seconds: From the first request to the last answer.
        results: The prompts' answers.
    """

    name: str
    batch: int
    seconds: float
    results: list[Result]


def check_batches(batches: Sequence[int], records: Sequence[PromptRecord], config: BenchConfig) -> None:
    """Refuse what can't be run.

    Raises:
        ConfigError: A batch is not at least 1, there are too few prompts for one, or later turns are asked for.
    """
    if not batches or min(batches) < 1:
        raise ConfigError(f"a batch must be at least 1, found {', '.join(map(str, batches)) or 'none'}: give others")
    if max(batches) > len(records):
        raise ConfigError(
            f"{max(batches)} requests in flight need as many prompts, found {len(records)}: add prompts, or ask for "
            "a smaller batch"
        )
    if config.all_turns:
        raise ConfigError("requests in flight are first turns, found all turns asked for: leave out one of the two")


def planned_answers(batches: Sequence[int], prompts: int, config: BenchConfig) -> int:
    """How many answers `run_batch_bench` gives."""
    return sum(map(len, _plan(batches, config).values())) * prompts * config.repeats


def run_batch_bench(
    engine: Engine,
    records: Sequence[PromptRecord],
    config: BenchConfig,
    batches: Sequence[int],
    on_answer: Callable[[], object] = lambda: None,
) -> BatchReport:
    """Run every method on all prompts at each number of requests in flight.

    Every output is compared with plain decoding's one at a time, which always runs.

    Args:
        engine: The engine; idle.
        records: The prompts, of which first turns are asked; no fewer than the largest batch.
        config: What to run.
        batches: The numbers of requests in flight.
        on_answer: Called after each answer.

    Raises:
        ConfigError: See `check_batches`, or the engine was built for smaller batches.
        PromptError: A prompt does not fit.
    """
    check_batches(batches, records, config)
    if max(batches) > engine.max_batch:
        raise ConfigError(
            f"the engine runs {engine.max_batch} sequences at once, found a batch of {max(batches)}: ask for a "
            "smaller one, or build it again with a larger --max-batch"
        )
    prompts = first_prompts(engine, records, config)
    served = [
        one
        for batch, names in _plan(batches, config).items()
        for one in _take_turns(engine, prompts, names, config, batch, on_answer)
    ]
    report = BatchReport(prompts=len(prompts), max_new_tokens=config.max_new_tokens, sampling=config.sampling)
    for each in served:
        _score(report.score(each.name, each.batch), engine, prompts, served[0].results, each, config.sampling)
    return report


def _plan(batches: Sequence[int], config: BenchConfig) -> dict[int, list[str]]:
    """Who is served at which batch: plain decoding one at a time first, then every method at every batch."""
    return {1: [BASELINE]} | {batch: list(config.runs()) for batch in batches}


def _take_turns(
    engine: Engine,
    prompts: Sequence[list[int]],
    names: Sequence[str],
    config: BenchConfig,
    batch: int,
    on_answer: Callable[[], object],
) -> list[_Served]:
    """Serve all prompts by every method in turn, by one scheduler.

    First-use costs fall before the clock counts: methods start, and the cache grows to what the longest prompts need.
    """
    runs = config.runs()
    # Nothing is taken over of earlier texts; what sizes trees goes on learning, as in a service.
    serving = SchedulerConfig(slots=batch, queue=batch, reuse_prefixes=False)
    with ThreadPoolExecutor(batch) as clients, Scheduler(engine, serving):

        def served(name: str) -> _Served:
            began, results = time.perf_counter(), []
            for result in clients.map(partial(engine.generate, config=runs[name]), prompts):
                results.append(result)
                on_answer()
            return _Served(name=name, batch=batch, seconds=time.perf_counter() - began, results=results)

        for name in names:
            brief = replace(runs[name], max_new_tokens=min(config.max_new_tokens, WARM_UP_TOKENS))
            engine.generate(prompts[:batch], brief)
        engine.generate(sorted(prompts, key=len)[-batch:], runs[BASELINE])
        return [served(name) for _ in range(config.repeats) for name in names]


def _score(
    score: BatchScore,
    engine: Engine,
    prompts: Sequence[list[int]],
    plain: Sequence[Result],
    served: _Served,
    sampling: Sampling,
) -> None:
    """Count a round, each answer beside plain decoding's."""
    stats = sum((result.stats for result in served.results), Stats())
    score.rounds.append(BatchRound(seconds=served.seconds, stats=stats))
    for prompt, expected, found in zip(prompts, plain, served.results, strict=True):
        score.compare(found.guarantee, compare_with_plain(engine, prompt, expected, found, sampling))
