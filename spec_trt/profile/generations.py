"""Real generations of every method on the same prompts, in turn, and what their latency was."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from spec_trt.errors import PromptError
from spec_trt.profile.acceptance import by_depth, by_rank
from spec_trt.profile.cost_curve import Track
from spec_trt.profile.percentiles import Percentiles
from spec_trt.profile.recording import Recording, Span
from spec_trt.prompts import PromptRecord
from spec_trt.runtime.engine import Engine
from spec_trt.runtime.generation import GenerationConfig
from spec_trt.runtime.scheduler import Scheduler, SchedulerConfig

__all__ = ["PHASES", "MethodLatency", "encode_prompts", "latency", "record_batch", "record_methods"]

PHASES = ("draft", "verify", "accept", "commit", "emit", "other")
_WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodLatency:
    """How a method's generations went.

    Attributes:
        method: Its name.
        options: Its options that are not the default.
        generations: How many.
        tokens: Emitted by all of them.
        passes: Verify passes of all of them.
        nodes_per_pass: The mean, roots included.
        accept_length: Tokens per pass.
        tokens_per_s: Prefill excluded.
        first_token_ms: From a request to its first tokens.
        token_ms: Per token behind the first pass's; tokens that come together share the time they took.
        step_ms: From one pass's tokens to the next one's.
        phase_ms: Of a pass, by phase: draft, verify, accept, commit, emit (stop and detokenize), and other, which is
            the rest of the step.
        accepted_by_depth: For each depth from 1, the share of passes that accepted a draft there.
        accepted_by_rank: For each depth and rank, how often the draft was right where its parent was.
    """

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    generations: int
    tokens: int
    passes: int
    nodes_per_pass: float
    accept_length: float
    tokens_per_s: float
    first_token_ms: Percentiles
    token_ms: Percentiles
    step_ms: Percentiles
    phase_ms: Mapping[str, Percentiles]
    accepted_by_depth: Sequence[float]
    accepted_by_rank: Sequence[Sequence[float]]


def encode_prompts(engine: Engine, records: Sequence[PromptRecord], *, raw: bool, room: int) -> list[list[int]]:
    """The first turn of every record as tokens.

    Args:
        engine: The engine.
        records: The prompts.
        raw: Whether to leave the chat template out.
        room: Tokens of a prompt at the most; of longer ones the end is taken.

    Raises:
        PromptError: There is no room.
    """
    if room < 1:
        raise PromptError(f"the engine holds {engine.max_length} tokens, too few for the answers: ask for shorter ones")
    chat = engine.tokenizer.has_chat_template and not raw
    return [engine.encode(record.turns[0], chat=chat)[-room:] for record in records]


def record_methods(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    configs: Mapping[str, GenerationConfig],
    track: Track[Sequence[int]],
    *,
    between: Callable[[], object] = lambda: None,
    seconds: float = math.inf,
) -> list[Recording]:
    """Run every method on every prompt, in turn; each is warmed up first.

    Args:
        engine: The engine.
        prompts: As tokens.
        configs: By name, how a method generates.
        track: Goes through the prompts.
        between: Called after every prompt.
        seconds: After which no further prompt is begun.
    """
    recordings: list[Recording] = []
    deadline = time.perf_counter() + seconds
    with Scheduler(engine, SchedulerConfig(slots=1, reuse_prefixes=False)) as scheduler:
        for number, prompt in enumerate(track(prompts, "generations")):
            if time.perf_counter() > deadline:
                break
            if not number:
                for name, config in configs.items():
                    _record(engine, scheduler, name, prompt, replace(config, max_new_tokens=_WARM_UP_TOKENS))
            recordings += [_record(engine, scheduler, name, prompt, config) for name, config in configs.items()]
            between()
    return recordings


def record_batch(engine: Engine, prompt: Sequence[int], config: GenerationConfig, batch: int) -> list[Recording]:
    """Run one prompt in so many sequences at once, or in as many as the engine takes."""
    places = min(batch, engine.max_batch)
    with Scheduler(engine, SchedulerConfig(slots=places, reuse_prefixes=False)) as scheduler:
        sequences = [engine.prepare(prompt, config) for _ in range(places)]
        recordings = [Recording(config.method, sequence) for sequence in sequences]
        for generation in [scheduler.run(sequence) for sequence in sequences]:
            generation.result()
    return recordings


def _record(
    engine: Engine, scheduler: Scheduler, name: str, prompt: Sequence[int], config: GenerationConfig
) -> Recording:
    sequence = engine.prepare(prompt, config)
    recording = Recording(name, sequence)
    scheduler.run(sequence).result()
    return recording


def latency(method: str, options: Mapping[str, Any], recordings: Sequence[Recording]) -> MethodLatency:
    """Sum up a method's recordings, at least one."""
    passes = [one for recording in recordings for one in recording.passes]
    spans = [group for recording in recordings for group in recording.spans]
    gaps = [gap for recording in recordings for gap in recording.stats.gaps]
    emitted = sum(recording.stats.emitted for recording in recordings)
    seconds = sum(recording.stats.decode_seconds for recording in recordings)
    return MethodLatency(
        method=method,
        options=options,
        generations=len(recordings),
        tokens=emitted,
        passes=len(passes),
        nodes_per_pass=sum(one.nodes for one in passes) / len(passes),
        accept_length=emitted / len(passes),
        tokens_per_s=emitted / seconds,
        first_token_ms=Percentiles.of_seconds(
            [time for recording in recordings for time in recording.stats.first_token_seconds]
        ),
        token_ms=Percentiles.of_seconds([elapsed / count for elapsed, count in gaps for _ in range(count)]),
        step_ms=Percentiles.of_seconds([elapsed for elapsed, _ in gaps]),
        phase_ms=_phases(recordings, spans),
        accepted_by_depth=by_depth(passes),
        accepted_by_rank=by_rank(passes),
    )


def _phases(recordings: Sequence[Recording], spans: Sequence[Sequence[Span]]) -> dict[str, Percentiles]:
    found = {
        phase: [sum(span.seconds for span in group if span.phase == phase) for group in spans] for phase in PHASES[:-1]
    }
    others = [
        after[0].started - before[0].started - sum(span.seconds for span in before)
        for recording in recordings
        for before, after in zip(recording.spans, recording.spans[1:], strict=False)
    ]
    return {phase: Percentiles.of_seconds(seconds) for phase, seconds in {**found, "other": others}.items()}
