"""Methods side by side: the same prompts, in turn, beside plain decoding."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from spec_trt.bench_report import BASELINE, BenchReport, MethodScore
from spec_trt.errors import ConfigError, PromptError, SpecTrtError
from spec_trt.prompts import PromptRecord
from spec_trt.runtime.allowance import BudgetName
from spec_trt.runtime.drafters import METHODS
from spec_trt.runtime.engine import Engine
from spec_trt.runtime.generation import GenerationConfig, Result
from spec_trt.runtime.near_tie import Comparison, compare_outputs
from spec_trt.runtime.sampling import Sampling
from spec_trt.runtime.scheduler import Scheduler, SchedulerConfig

__all__ = ["WARM_UP_TOKENS", "BenchConfig", "OnAnswer", "compare_with_plain", "first_prompts", "run_bench"]

WARM_UP_TOKENS = 8

OnAnswer = Callable[[Mapping[str, Result], Mapping[str, Comparison]], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchConfig:
    """What to run.

    Attributes:
        methods: By name, each method's own options. The baseline always runs.
        max_new_tokens: Per generation.
        repeats: Runs of each prompt by each method; the median one counts.
        sampling: How every method chooses tokens; drawn drafts and typical acceptance are for those that can.
        chat: Whether to use the chat template, where the model has one.
        all_turns: Whether to go through a record's turns, each answered by plain decoding for the next.
        budgets: What sizes the trees; every method runs once with each.
    """

    methods: Mapping[str, Mapping[str, Any]]
    max_new_tokens: int = 128
    repeats: int = 1
    sampling: Sampling = field(default_factory=Sampling)
    chat: bool = True
    all_turns: bool = False
    budgets: Sequence[int | BudgetName] = ("fixed",)

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise ConfigError(f"repeats must be at least 1, found {self.repeats}")
        if self.sampling.draft_sampling:
            self._check_taken("draft_sampling", [name for name in METHODS if METHODS[name].draws_drafts])
        if self.sampling.acceptance == "typical":
            self._check_taken("typical acceptance", [name for name in METHODS if METHODS[name].typical])

    def _check_taken(self, words: str, able: Sequence[str]) -> None:
        """Refuse what none of the methods can do."""
        if not set(able) & set(self.methods):
            raise ConfigError(
                f"{words} is for {', '.join(able)}: found the methods {', '.join(self.methods) or 'none'}; add that one"
            )

    def runs(self) -> dict[str, GenerationConfig]:
        """What is run by name, plain decoding first: METHOD, or METHOD@BUDGET where there are several budgets."""
        several = len(self.budgets) > 1
        named = [
            (f"{method}@{budget}" if several else method, self._run_of(method, budget))
            for method in self.methods
            if method != BASELINE
            for budget in self.budgets
        ]
        return {BASELINE: self._run_of(BASELINE, "fixed"), **dict(named)}

    def _run_of(self, method: str, budget: int | BudgetName) -> GenerationConfig:
        """How a method generates."""
        able = METHODS.get(method)
        sampling = replace(
            self.sampling,
            draft_sampling=self.sampling.draft_sampling and able is not None and able.draws_drafts,
            acceptance=self.sampling.acceptance if able is not None and able.typical else "lossless",
        )
        return GenerationConfig(
            method=method,
            options=self.methods.get(method, {}),
            sampling=sampling,
            max_new_tokens=self.max_new_tokens,
            budget=budget,
        )

    def encode(self, engine: Engine, messages: Sequence[dict[str, str]]) -> list[int]:
        """The prompt of a conversation."""
        if self.chat and engine.tokenizer.has_chat_template:
            return engine.tokenizer.encode_chat(messages)
        return engine.tokenizer.encode("\n".join(message["content"] for message in messages))


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
    with Scheduler(engine, SchedulerConfig(slots=1, reuse_prefixes=False)):  # no run shares anything with another
        return _run_bench(engine, records, config, on_answer)


def _run_bench(
    engine: Engine, records: Sequence[PromptRecord], config: BenchConfig, on_answer: OnAnswer
) -> BenchReport:
    runs = config.runs()
    report = BenchReport(prompts=len(records), max_new_tokens=config.max_new_tokens, sampling=config.sampling)
    _warm_up(engine, first_prompts(engine, records, config)[0], runs)
    for record in records:
        for prompt, results in _answer(engine, record, runs, config):
            plain = results[BASELINE]
            comparisons = {
                name: compare_with_plain(engine, prompt, plain, result, config.sampling)
                for name, result in results.items()
            }
            for scores in _score_tables(report, record):
                _score(scores, results, comparisons)
            on_answer(results, comparisons)
    return report


def compare_with_plain(
    engine: Engine, prompt: Sequence[int], plain: Result, result: Result, sampling: Sampling
) -> Comparison:
    """An output beside plain decoding's, where its tokens must be the same."""
    if result.guarantee != "token for token":
        return Comparison(verdict="not_compared")
    return compare_outputs(engine, prompt, plain.token_ids, result.token_ids, sampling)


def _warm_up(engine: Engine, prompt: Sequence[int], runs: Mapping[str, GenerationConfig]) -> None:
    """Let first-use costs fall before the clock counts."""
    for run in runs.values():
        engine.generate(prompt, replace(run, max_new_tokens=min(run.max_new_tokens, WARM_UP_TOKENS)))


def first_prompts(engine: Engine, records: Sequence[PromptRecord], config: BenchConfig) -> list[list[int]]:
    """The prompt of every record's first turn.

    Raises:
        PromptError: One does not fit: found before the first run, not after an hour of them.
    """
    prompts = []
    for number, record in enumerate(records, 1):
        prompts.append(config.encode(engine, [{"role": "user", "content": record.turns[0]}]))
        try:
            engine.check_prompt(prompts[-1])
        except PromptError as error:
            raise PromptError(f"prompt {number} of {len(records)} ({record.turns[0][:40]!r}): {error}") from error
    return prompts


def _answer(
    engine: Engine, record: PromptRecord, runs: Mapping[str, GenerationConfig], config: BenchConfig
) -> Iterator[tuple[list[int], dict[str, Result]]]:
    """Every method's result for each turn asked for; plain decoding's answer goes into the next turn."""
    messages: list[dict[str, str]] = []
    for turn in record.turns if config.all_turns else record.turns[:1]:
        messages.append({"role": "user", "content": turn})
        prompt = config.encode(engine, messages)
        results = _run_interleaved(engine, prompt, runs, config)
        yield prompt, results
        messages.append({"role": "assistant", "content": results[BASELINE].text})


def _run_interleaved(
    engine: Engine, prompt: Sequence[int], runs: Mapping[str, GenerationConfig], config: BenchConfig
) -> dict[str, Result]:
    """Run the methods in turn, `repeats` times; of each, the run of median speed.

    Where trees are sized by what earlier runs have shown, near ties may fall either way: a run whose output is wrong
    takes the median's place there, so that it is seen.

    Raises:
        SpecTrtError: A method's runs differ from one another though its trees have fixed sizes: always a fault.
    """
    rounds = [{name: engine.generate(prompt, run) for name, run in runs.items()} for _ in range(config.repeats)]
    medians = {name: _median_run([results[name] for results in rounds]) for name in runs}
    for name, run in runs.items():
        others = [results[name] for results in rounds if results[name].token_ids != medians[name].token_ids]
        if others and run.budget != "auto":
            raise SpecTrtError(
                f"{name} gave different outputs for the same prompt: expected the same again, please report it"
            )
        for other in others:
            if compare_with_plain(engine, prompt, medians[BASELINE], other, config.sampling).verdict == "different":
                medians[name] = other
    return medians


def _median_run(results: Sequence[Result]) -> Result:
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
        scores.setdefault(name, MethodScore()).add(result, speedup, comparisons[name])
