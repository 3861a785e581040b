"""What a generation cost and gained: the definitions, once."""

import time
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Stats"]

Phase = Literal["prefill", "draft", "verify", "other"]


@dataclass(slots=True, kw_only=True)
class Stats:
    """Counts and times of one or more generations; add them up with `+`.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        emitted: Tokens the passes emitted, before stop truncation: accepted drafts plus one per pass.
        passes: Verify passes; prefill is not one.
        nodes: Nodes verified, roots included.
        accepted_by_depth: For each depth from 1, how many passes accepted at least that many drafts.
        seconds: Time by phase: `prefill` of the prompt, a draft model's included, `draft` (propose and observe),
            `verify`, and `other` (accept, commit, stop, detokenize). Waiting for a consumer is in none.
    """

    prompt_tokens: int = 0
    emitted: int = 0
    passes: int = 0
    nodes: int = 0
    accepted_by_depth: list[int] = field(default_factory=list)
    seconds: dict[Phase, float] = field(default_factory=lambda: dict.fromkeys(_PHASES, 0.0))

    def time(self, phase: Phase) -> "_Timer":
        """Add the duration of a `with` block to a phase."""
        return _Timer(self.seconds, phase)

    def record_pass(self, *, nodes: int, accepted: int) -> None:
        """Count one verify pass over `nodes` nodes that accepted `accepted` drafted tokens."""
        self.passes += 1
        self.nodes += nodes
        self.emitted += accepted + 1
        missing = accepted - len(self.accepted_by_depth)
        self.accepted_by_depth += [0] * missing
        for depth in range(accepted):
            self.accepted_by_depth[depth] += 1

    @property
    def accept_length(self) -> float:
        """Emitted tokens (before stop truncation) per verify pass, prefill excluded."""
        return self.emitted / self.passes if self.passes else 0.0

    @property
    def decode_seconds(self) -> float:
        """Time after the prefill."""
        return self.seconds["draft"] + self.seconds["verify"] + self.seconds["other"]

    @property
    def tokens_per_s(self) -> float:
        """Emitted tokens per second of decoding, prefill excluded."""
        return self.emitted / self.decode_seconds if self.decode_seconds else 0.0

    def ms_per_pass(self, phase: Phase) -> float:
        """Milliseconds of a phase per verify pass."""
        return 1e3 * self.seconds[phase] / self.passes if self.passes else 0.0

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
        )

    def to_json(self) -> dict[str, Any]:
        """The figures by name, times in milliseconds, for programs."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "emitted": self.emitted,
            "passes": self.passes,
            "nodes": self.nodes,
            "accept_length": self.accept_length,
            "accepted_by_depth": self.accepted_by_depth,
            "tokens_per_s": self.tokens_per_s,
            "prefill_ms": 1e3 * self.seconds["prefill"],
            **{f"{phase}_ms": self.ms_per_pass(phase) for phase in ("draft", "verify", "other")},
        }


class _Timer:
    """The `with` block of `Stats.time`: a plain class, as several begin and end with every pass."""

    __slots__ = ("_phase", "_seconds", "_started")

    def __init__(self, seconds: dict[Phase, float], phase: Phase) -> None:
        self._seconds, self._phase, self._started = seconds, phase, 0.0

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *_exception: object) -> None:
        self._seconds[self._phase] += time.perf_counter() - self._started


_PHASES: tuple[Phase, ...] = ("prefill", "draft", "verify", "other")
