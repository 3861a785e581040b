"""What a generation cost and gained: the definitions, once."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Phase", "Stats", "shared_time"]

Phase = Literal["prefill", "draft", "verify", "accept", "commit", "emit"]


@dataclass(slots=True, kw_only=True)
class Stats:
    """Counts and times of one or more generations; add them up with `+`.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        emitted: Tokens the passes emitted, before stop truncation: accepted drafts plus one per pass.
        passes: Verify passes; prefill is not one.
        nodes: Nodes verified, roots included.
        accepted_by_depth: For each depth from 1, how many passes accepted at least that many drafts.
        seconds: Time by phase: `prefill` of the prompt, a draft model's included, `draft` (size the tree, propose and
            observe), `verify`, `accept`, `commit`, and `emit` (stop, detokenize). Waiting for a consumer is in none.
            What serves several sequences at once counts in full for each: a pass, its sizes, its commit.
        reused_tokens: Tokens of the prompt that an earlier sequence had left in the cache.
        first_token_seconds: Of each generation, the time from its submission to its first tokens.
        gaps: Between one pass's tokens and the next one's: seconds, and how many tokens then came.
    """

    prompt_tokens: int = 0
    emitted: int = 0
    passes: int = 0
    nodes: int = 0
    accepted_by_depth: list[int] = field(default_factory=list)
    seconds: dict[Phase, float] = field(default_factory=lambda: dict.fromkeys(_PHASES, 0.0))
    reused_tokens: int = 0
    first_token_seconds: list[float] = field(default_factory=list)
    gaps: list[tuple[float, int]] = field(default_factory=list)
    _begun: float = field(default_factory=time.perf_counter)
    _newest: float | None = None

    def time(self, phase: Phase) -> "_Timer":
        """Add the duration of a `with` block to a phase."""
        return _Timer(self, phase)

    def add_span(self, phase: Phase, started: float, ended: float) -> None:
        """Add the time between two readings of `time.perf_counter` to a phase; for who wants to know when it was."""
        self.seconds[phase] += ended - started

    def record_pass(self, *, nodes: int, accepted: int) -> None:
        """Count one verify pass over `nodes` nodes that accepted `accepted` drafted tokens."""
        self.passes += 1
        self.nodes += nodes
        self.emitted += accepted + 1
        missing = accepted - len(self.accepted_by_depth)
        self.accepted_by_depth += [0] * missing
        for depth in range(accepted):
            self.accepted_by_depth[depth] += 1
        self._record_time(accepted + 1)

    def _record_time(self, tokens: int) -> None:
        now = time.perf_counter()
        if self._newest is None:
            self.first_token_seconds.append(now - self._begun)
        else:
            self.gaps.append((now - self._newest, tokens))
        self._newest = now

    @property
    def accept_length(self) -> float:
        """Emitted tokens (before stop truncation) per verify pass, prefill excluded."""
        return self.emitted / self.passes if self.passes else 0.0

    @property
    def decode_seconds(self) -> float:
        """Time after the prefill."""
        return sum(self.seconds.values()) - self.seconds["prefill"]

    @property
    def other_seconds(self) -> float:
        """Time in neither the draft's nor the target's graphs: accept, commit, emit."""
        return self.seconds["accept"] + self.seconds["commit"] + self.seconds["emit"]

    @property
    def tokens_per_s(self) -> float:
        """Emitted tokens per second of decoding, prefill excluded."""
        return self.emitted / self.decode_seconds if self.decode_seconds else 0.0

    @property
    def time_to_first_token(self) -> float:
        """Seconds from submission to the first tokens, the mean of several generations."""
        return sum(self.first_token_seconds) / len(self.first_token_seconds) if self.first_token_seconds else 0.0

    @property
    def inter_token_latency(self) -> float:
        """Seconds per token behind the first pass's, on the clock of who receives them."""
        tokens = sum(count for _, count in self.gaps)
        return sum(seconds for seconds, _ in self.gaps) / tokens if tokens else 0.0

    def ms_per_pass(self, phase: Phase | Literal["other"]) -> float:
        """Milliseconds of a phase per verify pass."""
        seconds = self.other_seconds if phase == "other" else self.seconds[phase]
        return 1e3 * seconds / self.passes if self.passes else 0.0

    def __add__(self, other: "Stats") -> "Stats":
        depths = max(len(self.accepted_by_depth), len(other.accepted_by_depth))
        return Stats(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            emitted=self.emitted + other.emitted,
            passes=self.passes + other.passes,
            nodes=self.nodes + other.nodes,
            accepted_by_depth=[
                sum(
                    counts[depth] for counts in (self.accepted_by_depth, other.accepted_by_depth) if depth < len(counts)
                )
                for depth in range(depths)
            ],
            seconds={phase: self.seconds[phase] + other.seconds[phase] for phase in _PHASES},
            reused_tokens=self.reused_tokens + other.reused_tokens,
            first_token_seconds=self.first_token_seconds + other.first_token_seconds,
            gaps=self.gaps + other.gaps,
        )

    def to_json(self) -> dict[str, Any]:
        """The figures by name, times in milliseconds, for programs."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "reused_tokens": self.reused_tokens,
            "emitted": self.emitted,
            "passes": self.passes,
            "nodes": self.nodes,
            "accept_length": self.accept_length,
            "accepted_by_depth": self.accepted_by_depth,
            "tokens_per_s": self.tokens_per_s,
            "time_to_first_token_ms": 1e3 * self.time_to_first_token,
            "inter_token_latency_ms": 1e3 * self.inter_token_latency,
            "prefill_ms": 1e3 * self.seconds["prefill"],
            **{f"{phase}_ms": self.ms_per_pass(phase) for phase in _PER_PASS},
        }


@contextmanager
def shared_time(several: Sequence[Stats], phase: Phase) -> Iterator[None]:
    """Add the duration of a `with` block, once done, to a phase of several sequences."""
    started = time.perf_counter()
    yield
    ended = time.perf_counter()
    for stats in several:
        stats.add_span(phase, started, ended)


class _Timer:
    """The `with` block of `Stats.time`: a plain class, as several begin and end with every pass."""

    __slots__ = ("_phase", "_started", "_stats")

    def __init__(self, stats: Stats, phase: Phase) -> None:
        self._stats, self._phase, self._started = stats, phase, 0.0

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *_exception: object) -> None:
        self._stats.add_span(self._phase, self._started, time.perf_counter())


_PHASES: tuple[Phase, ...] = ("prefill", "draft", "verify", "accept", "commit", "emit")
_PER_PASS: tuple[Phase | Literal["other"], ...] = ("draft", "verify", "other", "accept", "commit", "emit")
