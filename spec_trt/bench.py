"""Methods side by side: the same prompts, in turn, beside plain decoding."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from spec_trt.errors import ConfigError, PromptError, SpecTrtError
from spec_trt.prompts import PromptRecord
from spec_trt.runtime.engine import Engine, GenerationConfig, Result
from spec_trt.runtime.head_warning import head_warning
from spec_trt.runtime.near_tie import Comparison, compare_outputs
from spec_trt.runtime.stats import Stats
from spec_trt.table import format_table

__all__ = ["BASELINE", "BenchConfig", "BenchReport", "MethodScore", "run_bench"]

BASELINE = "autoregressive"

_WARM_UP_TOKENS = 8

OnAnswer = Callable[[Mapping[str, Result], Mapping[str, Comparison]], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchConfig:
    """What to run.

    Attributes:
        methods: By name, each method's own options. The baseline always runs.
        max_new_tokens: Per generation.
        repeats: Runs of each prompt by each method; the median one counts.
        chat: Whether to use the chat template, where the model has one.
        all_turns: Whether to go through a record's turns, each answered by plain decoding for the next.
    """

    methods: Mapping[str, Mapping[str, Any]]
    max_new_tokens: int = 128
    repeats: int = 1
    chat: bool = True
    all_turns: bool = False

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise ConfigError(f"repeats must be at least 1, found {self.repeats}")


@dataclass(slots=True, kw_only=True)
class MethodScore:
    """One method's figures over some prompts.

    Attributes:
        stats: Sums over the prompts.
        speedups: Per prompt, tokens per second over plain decoding's.
        near_ties: Outputs whose first difference from plain decoding's is a near tie.
        different: Outputs that differ otherwise: always a fault.
    """

    stats: Stats = field(default_factory=Stats)
    speedups: list[float] = field(default_factory=list)
    near_ties: int = 0
    different: int = 0

    def add(self, stats: Stats, speedup: float, comparison: Comparison) -> None:
        """Count one prompt."""
        self.stats = self.stats + stats
        self.speedups.append(speedup)
        self.near_ties += comparison.verdict == "near_tie"
        self.different += comparison.verdict == "different"

    def to_json(self, baseline: "MethodScore") -> dict[str, Any]:
        """The figures by name.

        `speedup` is the ratio of tokens per second over all prompts; `accepted_by_depth`, from depth 1 on, the share of
        passes that accepted so many drafts at the least.
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
            "identical": self.different == 0,
            "near_ties": self.near_ties,
        }


@dataclass(slots=True, kw_only=True)
class BenchReport:
    """Scores by method, over all prompts and by category."""

    prompts: int
    max_new_tokens: int
    scores: dict[str, MethodScore] = field(default_factory=dict)
    categories: dict[str, dict[str, MethodScore]] = field(default_factory=dict)

    @property
    def warnings(self) -> list[str]:
        """A line for each draft head that was of no use."""
        found = [head_warning(name, score.stats) for name, score in self.scores.items()]
        return [warning for warning in found if warning]

    def to_json(self) -> dict[str, Any]:
        """One object: `methods.<name>` and `categories.<category>.<name>`, with the same keys."""
        return {
            "prompts": self.prompts,
            "max_new_tokens": self.max_new_tokens,
            "methods": _to_json(self.scores),
            "categories": {category: _to_json(scores) for category, scores in self.categories.items()},
            "warnings": self.warnings,
        }

    def to_text(self) -> str:
        """A table over all prompts, one per category where there are any, acceptance by depth, and warnings."""
        tables = [_table(f"{self.prompts} prompts", self.scores)]
        tables += [_table(category, scores) for category, scores in self.categories.items()]
        return "\n\n".join([*tables, *_depth_tables(self.scores), *self.warnings])


def run_bench(
    engine: Engine,
    records: Sequence[PromptRecord],
    config: BenchConfig,
    on_answer: OnAnswer = lambda _results, _comparisons: None,
) -> BenchReport:
    """Run every method on every prompt, interleaved, and compare each output with plain decoding's.

    Args:
        engine: The engine.
        records: The prompts.
        config: What to run.
        on_answer: Called after each turn, with every method's result and its comparison with plain decoding's.
    """
    runs = {BASELINE: GenerationConfig(max_new_tokens=config.max_new_tokens)} | {
        name: GenerationConfig(method=name, options=options, max_new_tokens=config.max_new_tokens)
        for name, options in config.methods.items()
    }
    report = BenchReport(prompts=len(records), max_new_tokens=config.max_new_tokens)
    _check_prompts(engine, records, config)
    _warm_up(engine, records[0], runs, config)
    for record in records:
        for prompt, results in _answer(engine, record, runs, config):
            plain = results[BASELINE].token_ids
            comparisons = {
                name: compare_outputs(engine, prompt, plain, result.token_ids) for name, result in results.items()
            }
            for scores in _score_tables(report, record):
                _score(scores, results, comparisons)
            on_answer(results, comparisons)
    return report


def _warm_up(engine: Engine, record: PromptRecord, runs: Mapping[str, GenerationConfig], config: BenchConfig) -> None:
    """Let first-use costs fall before the clock counts."""
    prompt = _encode(engine, [{"role": "user", "content": record.turns[0]}], config)
    for run in runs.values():
        engine.generate(prompt, replace(run, max_new_tokens=min(run.max_new_tokens, _WARM_UP_TOKENS)))


def _check_prompts(engine: Engine, records: Sequence[PromptRecord], config: BenchConfig) -> None:
    """Find a prompt that does not fit before the first run, not after an hour of them."""
    for number, record in enumerate(records, 1):
        try:
            engine.check_prompt(_encode(engine, [{"role": "user", "content": record.turns[0]}], config))
        except PromptError as error:
            raise PromptError(f"prompt {number} of {len(records)} ({record.turns[0][:40]!r}): {error}") from error


def _answer(
    engine: Engine, record: PromptRecord, runs: Mapping[str, GenerationConfig], config: BenchConfig
) -> Iterator[tuple[list[int], dict[str, Result]]]:
    """Every method's result for each turn asked for; plain decoding's answer goes into the next turn."""
    messages: list[dict[str, str]] = []
    for turn in record.turns if config.all_turns else record.turns[:1]:
        messages.append({"role": "user", "content": turn})
        prompt = _encode(engine, messages, config)
        results = _run_interleaved(engine, prompt, runs, config.repeats)
        yield prompt, results
        messages.append({"role": "assistant", "content": results[BASELINE].text})


def _encode(engine: Engine, messages: Sequence[dict[str, str]], config: BenchConfig) -> list[int]:
    if config.chat and engine.tokenizer.has_chat_template:
        return engine.tokenizer.encode_chat(messages)
    return engine.tokenizer.encode("\n".join(message["content"] for message in messages))


def _run_interleaved(
    engine: Engine, prompt: Sequence[int], runs: Mapping[str, GenerationConfig], repeats: int
) -> dict[str, Result]:
    """Run the methods in turn, `repeats` times; of each, the run of median speed.

    Raises:
        SpecTrtError: A method's runs differ from one another: always a fault.
    """
    rounds = [{name: engine.generate(prompt, run) for name, run in runs.items()} for _ in range(repeats)]
    return {name: _median_run(name, [results[name] for results in rounds]) for name in runs}


def _median_run(name: str, results: Sequence[Result]) -> Result:
    if any(result.token_ids != results[0].token_ids for result in results):
        raise SpecTrtError(
            f"{name} gave different outputs for the same prompt: expected the same again, please report it"
        )
    return sorted(results, key=lambda result: result.stats.tokens_per_s)[(len(results) - 1) // 2]


def _score_tables(report: BenchReport, record: PromptRecord) -> list[dict[str, MethodScore]]:
    """The tables that a record counts in."""
    if record.category is None:
        return [report.scores]
    return [report.scores, report.categories.setdefault(record.category, {})]


def _score(
    scores: dict[str, MethodScore], results: Mapping[str, Result], comparisons: Mapping[str, Comparison]
) -> None:
    for name, result in results.items():
        speedup = result.stats.tokens_per_s / results[BASELINE].stats.tokens_per_s
        scores.setdefault(name, MethodScore()).add(result.stats, speedup, comparisons[name])


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
        _identical(figures),
    ]


def _identical(figures: Mapping[str, Any]) -> str:
    if not figures["identical"]:
        return "NO"
    return f"yes, {figures['near_ties']} near ties" if figures["near_ties"] else "yes"
