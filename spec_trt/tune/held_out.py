"""Trees side by side, and beside plain decoding, on prompts that they were not fitted to."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from spec_trt.errors import SpecTrtError
from spec_trt.runtime.engine import Engine
from spec_trt.runtime.generation import GenerationConfig, Result
from spec_trt.runtime.near_tie import compare_outputs
from spec_trt.runtime.scheduler import Scheduler, SchedulerConfig
from spec_trt.runtime.stats import Stats

__all__ = ["DEFAULT", "PLAIN", "TUNED", "HeldOut", "measure_held_out", "split_prompts"]

PLAIN, DEFAULT, TUNED = "plain", "default", "tuned"
_EVERY = 4
_WARM_UP_TOKENS = 8


def split_prompts(prompts: Sequence[list[int]]) -> tuple[list[list[int]], list[list[int]]]:
    """The prompts to fit to, and every fourth one, held out."""
    fitted = [prompt for number, prompt in enumerate(prompts, 1) if number % _EVERY]
    return fitted, list(prompts[_EVERY - 1 :: _EVERY])


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """What one way to decode did on the held-out prompts.

    Attributes:
        ms_per_token: Of each prompt, prefill excluded: the median of its runs.
        tokens: Of each prompt.
        stats: Sums over prompts and runs.
        near_ties: Outputs whose first difference from plain decoding's is a near tie.
    """

    ms_per_token: Sequence[float]
    tokens: Sequence[int]
    stats: Stats
    near_ties: int = 0

    @property
    def mean_ms_per_token(self) -> float:
        """Over all tokens."""
        total = sum(ms * tokens for ms, tokens in zip(self.ms_per_token, self.tokens, strict=True))
        return total / sum(self.tokens)

    def speedup_over(self, other: "HeldOut") -> float:
        """The ratio of tokens per second."""
        return other.mean_ms_per_token / self.mean_ms_per_token

    def range_over(self, other: "HeldOut") -> tuple[float, float]:
        """The least and the largest ratio of a prompt."""
        ratios = [theirs / ours for theirs, ours in zip(other.ms_per_token, self.ms_per_token, strict=True)]
        return min(ratios), max(ratios)


def measure_held_out(
    engine: Engine,
    prompts: Sequence[list[int]],
    runs: Mapping[str, GenerationConfig],
    *,
    repeats: int,
    on_run: Callable[[], object] = lambda: None,
) -> dict[str, HeldOut]:
    """Run all ways in turn, prompt by prompt, the first one changing from round to round.

    Args:
        engine: The engine.
        prompts: The held-out prompts.
        runs: By name, how to generate; `PLAIN` is what the others' outputs are compared with.
        repeats: Rounds per prompt.
        on_run: Called after each generation.

    Raises:
        SpecTrtError: An output differs from plain decoding's otherwise than by a near tie: always a fault.
    """
    results: dict[str, list[list[Result]]] = {name: [] for name in runs}
    near_ties: Counter[str] = Counter()
    with Scheduler(engine, SchedulerConfig(slots=1, reuse_prefixes=False)):  # so that every run reads its prompt alike
        for run in runs.values():
            engine.generate(prompts[0], replace(run, max_new_tokens=min(run.max_new_tokens, _WARM_UP_TOKENS)))
        for prompt in prompts:
            rounds = [_round(engine, prompt, runs, number, on_run) for number in range(repeats)]
            for name, run in runs.items():
                found = [results_of[name] for results_of in rounds]
                results[name].append(found)
                near_ties[name] += _has_near_tie(engine, prompt, name, run, rounds[0][PLAIN], found)
    return {name: _held_out(results[name], near_ties[name]) for name in runs}


def _round(
    engine: Engine,
    prompt: list[int],
    runs: Mapping[str, GenerationConfig],
    number: int,
    on_run: Callable[[], object],
) -> dict[str, Result]:
    names, found = list(runs), dict[str, Result]()
    first = number % len(names)
    for name in names[first:] + names[:first]:
        found[name] = engine.generate(prompt, runs[name])
        on_run()
    return found


def _has_near_tie(
    engine: Engine, prompt: list[int], name: str, run: GenerationConfig, plain: Result, results: Sequence[Result]
) -> bool:
    """Whether an output leaves plain decoding's at a near tie."""
    verdicts = {
        compare_outputs(engine, prompt, plain.token_ids, result.token_ids, run.sampling).verdict for result in results
    }
    if "different" in verdicts:
        raise SpecTrtError(
            f"{run.method} with the {name} tree gave an output that is not plain decoding's: expected equal tokens, "
            "nothing was written; please report it"
        )
    return "near_tie" in verdicts


def _held_out(results: Sequence[Sequence[Result]], near_ties: int) -> HeldOut:
    return HeldOut(
        ms_per_token=[median(1e3 / result.stats.tokens_per_s for result in runs) for runs in results],
        tokens=[runs[0].stats.emitted for runs in results],
        stats=sum((result.stats for runs in results for result in runs), start=Stats()),
        near_ties=near_ties,
    )
