"""What methods gave at several numbers of requests in flight: scores, table and JSON."""

from dataclasses import asdict, dataclass, field
from typing import Any

from spec_trt.bench_report import BASELINE, identical_words, method_of
from spec_trt.runtime.accept import Guarantee
from spec_trt.runtime.head_warning import head_warning
from spec_trt.runtime.near_tie import Comparison
from spec_trt.runtime.sampling import Sampling
from spec_trt.runtime.stats import Stats
from spec_trt.table import format_table

__all__ = ["BatchReport", "BatchRound", "BatchScore"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRound:
    """All prompts answered once.

    Attributes:
        seconds: From the first request to the last answer.
        stats: Sums over the prompts.
    """

    seconds: float
    stats: Stats

    @property
    def decode_seconds(self) -> float:
        """Of these, those in which no prompt was read: one is read at a time, between passes."""
        return self.seconds - self.stats.seconds["prefill"]

    @property
    def tokens_per_s(self) -> float:
        """Emitted tokens of all requests per second of decoding, on the clock."""
        return self.stats.emitted / self.decode_seconds

    @property
    def token_ms(self) -> float:
        """Median over all tokens but each answer's first: a pass's time is shared by the tokens that came of it."""
        return 1e3 * _weighted_median([(seconds / count, count) for seconds, count in self.stats.gaps])

    @property
    def first_token_ms(self) -> float:
        """Median over the requests of the time from a request to its first token, its prompt's reading included."""
        return 1e3 * _weighted_median([(seconds, 1) for seconds in self.stats.first_token_seconds])


def _weighted_median(values: list[tuple[float, int]]) -> float:
    """Of values that each count so many times; 0 of none."""
    half, seen = sum(count for _, count in values) / 2, 0
    for value, count in sorted(values):
        seen += count
        if seen >= half:
            return value
    return 0.0


@dataclass(slots=True, kw_only=True)
class BatchScore:
    """One method's figures at one number of requests in flight.

    Attributes:
        rounds: All prompts, as often as they were run; the median one counts.
        outputs: Answers of all rounds.
        near_ties: Those whose first difference from plain decoding's one at a time is a near tie.
        different: Those that differ otherwise: always a fault.
        guarantee: What they have in common with plain decoding's; only equal tokens are compared.
    """

    rounds: list[BatchRound] = field(default_factory=list)
    outputs: int = 0
    near_ties: int = 0
    different: int = 0
    guarantee: Guarantee = "token for token"

    def compare(self, guarantee: Guarantee, comparison: Comparison) -> None:
        """Count one answer."""
        self.guarantee = guarantee
        self.outputs += 1
        self.near_ties += comparison.verdict == "near_tie"
        self.different += comparison.verdict == "different"

    @property
    def median(self) -> BatchRound:
        """The round of median speed."""
        return sorted(self.rounds, key=lambda each: each.tokens_per_s)[(len(self.rounds) - 1) // 2]

    def to_json(self, baseline: "BatchScore") -> dict[str, Any]:
        """The figures by name; `identical` is None where outputs are not compared."""
        median = self.median
        return {
            "tokens_per_s": median.tokens_per_s,
            "speedup": median.tokens_per_s / baseline.median.tokens_per_s,
            "seconds": median.seconds,
            "prefill_seconds": median.stats.seconds["prefill"],
            "emitted": median.stats.emitted,
            "accept_length": median.stats.accept_length,
            "inter_token_latency_ms": median.token_ms,
            "time_to_first_token_ms": median.first_token_ms,
            "guarantee": self.guarantee,
            "identical": self.different == 0 if self.guarantee == "token for token" else None,
            "outputs": self.outputs,
            "near_ties": self.near_ties,
        }


@dataclass(slots=True, kw_only=True)
class BatchReport:
    """Scores by method and number of requests in flight; plain decoding's one at a time is what others are measured by.

    Attributes:
        prompts: How many.
        max_new_tokens: Per answer.
        sampling: How tokens were chosen.
        scores: By method and batch.
    """

    prompts: int
    max_new_tokens: int
    sampling: Sampling
    scores: dict[str, dict[int, BatchScore]] = field(default_factory=dict)

    def score(self, method: str, batch: int) -> BatchScore:
        """A method's score at a batch, empty at first."""
        return self.scores.setdefault(method, {}).setdefault(batch, BatchScore())

    @property
    def warnings(self) -> list[str]:
        """A line for each draft head that was of no use."""
        found = [
            head_warning(method_of(name), sum((score.median.stats for score in by_batch.values()), Stats()))
            for name, by_batch in self.scores.items()
        ]
        return [warning for warning in found if warning]

    def to_json(self) -> dict[str, Any]:
        """One object: `methods.<name>.<batch>`, with the same keys."""
        return {
            "prompts": self.prompts,
            "max_new_tokens": self.max_new_tokens,
            "sampling": asdict(self.sampling),
            "methods": {
                name: {str(batch): score.to_json(self.scores[BASELINE][1]) for batch, score in by_batch.items()}
                for name, by_batch in self.scores.items()
            },
            "warnings": self.warnings,
        }

    def to_text(self) -> str:
        """A table with a row per method and batch, and warnings."""
        sampled = "" if self.sampling.is_greedy else f", temperature {self.sampling.temperature:g}"
        header = [
            f"{self.prompts} prompts{sampled}",
            "in flight",
            "tok/s",
            "speedup",
            "accept length",
            "token ms",
            "first token ms",
            "identical",
        ]
        rows = [
            _row(name, batch, figures)
            for name, by_batch in self.to_json()["methods"].items()
            for batch, figures in by_batch.items()
        ]
        return "\n\n".join([format_table(header, rows), *self.warnings])


def _row(name: str, batch: str, figures: dict[str, Any]) -> list[str]:
    return [
        name,
        batch,
        f"{figures['tokens_per_s']:.1f}",
        f"{figures['speedup']:.2f}",
        f"{figures['accept_length']:.2f}",
        f"{figures['inter_token_latency_ms']:.1f}",
        f"{figures['time_to_first_token_ms']:.0f}",
        identical_words(figures),
    ]
