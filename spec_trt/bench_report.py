"""What methods side by side gave: scores, tables and JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from spec_trt.runtime.accept import Guarantee
from spec_trt.runtime.generation import Result
from spec_trt.runtime.head_warning import head_warning
from spec_trt.runtime.near_tie import Comparison
from spec_trt.runtime.sampling import Sampling
from spec_trt.runtime.stats import Stats
from spec_trt.table import format_table

__all__ = ["BASELINE", "BenchReport", "MethodScore", "identical_words", "method_of"]

BASELINE = "autoregressive"


@dataclass(slots=True, kw_only=True)
class MethodScore:
    """One method's figures over some prompts.

    Attributes:
        stats: Sums over the prompts.
        speedups: Per prompt, tokens per second over plain decoding's.
        near_ties: Outputs whose first difference from plain decoding's is a near tie.
        different: Outputs that differ otherwise: always a fault.
        guarantee: What its outputs have in common with plain decoding's; only equal tokens are compared.
    """

    stats: Stats = field(default_factory=Stats)
    speedups: list[float] = field(default_factory=list)
    near_ties: int = 0
    different: int = 0
    guarantee: Guarantee = "token for token"

    def add(self, result: Result, speedup: float, comparison: Comparison) -> None:
        """Count one prompt."""
        self.stats = self.stats + result.stats
        self.guarantee = result.guarantee
        self.speedups.append(speedup)
        self.near_ties += comparison.verdict == "near_tie"
        self.different += comparison.verdict == "different"

    def to_json(self, baseline: "MethodScore") -> dict[str, Any]:
        """The figures by name.

        `speedup` is the ratio of tokens per second over all prompts; `accepted_by_depth`, from depth 1 on, the share of
        passes that accepted so many drafts at the least; `identical` is None where outputs are not compared.
        """
        low, high = min(self.speedups), max(self.speedups)
        return {
            "tokens_per_s": self.stats.tokens_per_s,
            "accept_length": self.stats.accept_length,
            "accepted_by_depth": [count / self.stats.passes for count in self.stats.accepted_by_depth],
            "passes": self.stats.passes,
            "nodes_per_pass": self.stats.nodes / self.stats.passes,
            **{f"{phase}_ms": self.stats.ms_per_pass(phase) for phase in ("draft", "verify", "other")},
            "speedup": self.stats.tokens_per_s / baseline.stats.tokens_per_s,
            "speedup_low": low,
            "speedup_high": high,
            "guarantee": self.guarantee,
            "identical": self.different == 0 if self.guarantee == "token for token" else None,
            "near_ties": self.near_ties,
        }


@dataclass(slots=True, kw_only=True)
class BenchReport:
    """Scores by method, over all prompts and by category."""

    prompts: int
    max_new_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    scores: dict[str, MethodScore] = field(default_factory=dict)
    categories: dict[str, dict[str, MethodScore]] = field(default_factory=dict)

    @property
    def warnings(self) -> list[str]:
        """A line for each draft head that was of no use."""
        found = [head_warning(method_of(name), score.stats) for name, score in self.scores.items()]
        return [warning for warning in found if warning]

    def to_json(self) -> dict[str, Any]:
        """One object: `methods.<name>` and `categories.<category>.<name>`, with the same keys."""
        return {
            "prompts": self.prompts,
            "max_new_tokens": self.max_new_tokens,
            "sampling": asdict(self.sampling),
            "methods": _to_json(self.scores),
            "categories": {category: _to_json(scores) for category, scores in self.categories.items()},
            "warnings": self.warnings,
        }

    def to_text(self) -> str:
        """A table over all prompts, one per category where there are any, acceptance by depth, and warnings."""
        sampled = "" if self.sampling.is_greedy else f", temperature {self.sampling.temperature:g}"
        tables = [_table(f"{self.prompts} prompts{sampled}", self.scores)]
        tables += [_table(category, scores) for category, scores in self.categories.items()]
        return "\n\n".join([*tables, *_depth_tables(self.scores), *self.warnings])


def _to_json(scores: Mapping[str, MethodScore]) -> dict[str, Any]:
    return {name: score.to_json(scores[BASELINE]) for name, score in scores.items()}


def _table(title: str, scores: Mapping[str, MethodScore]) -> str:
    header = [
        title,
        "tok/s",
        "speedup",
        "(range)",
        "accept length",
        "nodes",
        "draft ms",
        "verify ms",
        "other ms",
    ]
    rows = [_row(name, figures) for name, figures in _to_json(scores).items()]
    return format_table([*header, "identical"], rows)


def _depth_tables(scores: Mapping[str, MethodScore]) -> list[str]:
    """How often a pass accepted at least 1, 2, ... drafts, if one ever did."""
    by_depth = {name: figures["accepted_by_depth"] for name, figures in _to_json(scores).items() if name != BASELINE}
    depths = max(map(len, by_depth.values()), default=0)
    rows = [
        [name, *(f"{share:.2f}" for share in shares), *[""] * (depths - len(shares))]
        for name, shares in by_depth.items()
    ]
    return [format_table(["passes that accepted at least", *map(str, range(1, depths + 1))], rows)] if depths else []


def _row(name: str, figures: Mapping[str, Any]) -> list[str]:
    return [
        name,
        f"{figures['tokens_per_s']:.1f}",
        f"{figures['speedup']:.2f}",
        f"({figures['speedup_low']:.2f}-{figures['speedup_high']:.2f})",
        f"{figures['accept_length']:.2f}",
        f"{figures['nodes_per_pass']:.1f}",
        *(f"{figures[f'{phase}_ms']:.2f}" for phase in ("draft", "verify", "other")),
        identical_words(figures),
    ]


def identical_words(figures: Mapping[str, Any]) -> str:
    """The last cell of a row: whether a method's outputs were plain decoding's, by its `to_json`."""
    if figures["identical"] is None:
        return "in law" if figures["guarantee"] == "in law" else "NOT LOSSLESS"
    if not figures["identical"]:
        return "NO"
    return f"yes, {figures['near_ties']} near ties" if figures["near_ties"] else "yes"


def method_of(name: str) -> str:
    """The method of a run that is called METHOD or METHOD@BUDGET."""
    return name.partition("@")[0]
