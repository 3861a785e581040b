"""Whether every method's output is plain decoding's, and what it costs."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spec_trt.runtime.engine import Engine
from spec_trt.runtime.generation import GenerationConfig, Result
from spec_trt.runtime.near_tie import compare_outputs
from spec_trt.runtime.sampling import Sampling
from spec_trt.runtime.stats import Stats
from tests.gpu_check.report import Outcome

PLAIN = "autoregressive"

OPTIONS: dict[str, dict[str, Any]] = {
    "ngram": {},
    "jacobi": {"num_draft_tokens": 4},
    "lookahead": {"window": 5, "ngram_size": 4, "guesses": 4},
    "medusa": {},
    "eagle": {},
    "eagle2": {"depth": 4, "top_k": 4, "total_tokens": 16, "node_probability": 0, "level_probability": 0},
}
"""More nodes than a CPU's defaults: on a GPU they are nearly free."""


@dataclass(kw_only=True)
class MethodResult:
    """One method over all prompts."""

    stats: Stats = field(default_factory=Stats)
    prompts: int = 0
    near_ties: int = 0
    different: int = 0

    def to_json(self, plain: "MethodResult") -> dict[str, Any]:
        """The figures by name; nothing can be said of a speed of 0."""
        speed = plain.stats.tokens_per_s
        figures = self.stats.to_json()
        return {
            **{name: figures[name] for name in ("tokens_per_s", "accept_length", "draft_ms", "verify_ms", "other_ms")},
            "nodes_per_pass": self.stats.nodes / max(self.stats.passes, 1),
            "speedup": self.stats.tokens_per_s / speed if speed else None,
            "prompts": self.prompts,
            "near_ties": self.near_ties,
            "different": self.different,
        }


GREEDY = Sampling()
SAMPLED = Sampling(temperature=0.8, top_p=0.95, seed=7)


def run_methods(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    *,
    tokens: int,
    sampling: Sampling = GREEDY,
    stop: float = math.inf,
) -> dict[str, MethodResult]:
    """Run every method that an engine can on every prompt, after a warm-up on the first, and compare with plain.

    Args:
        engine: The engine.
        prompts: As token ids.
        tokens: To generate for each.
        sampling: How tokens are chosen; the same seed gives the same tokens, whatever the method.
        stop: The time, by `time.monotonic`, from which on no other prompt is begun.
    """
    results = {name: MethodResult() for name in engine.methods}
    for name in results:
        _generate(engine, prompts[0], name, tokens, sampling)
    for number, prompt in enumerate(prompts):
        if number and time.monotonic() > stop:
            break
        plain = _generate(engine, prompt, PLAIN, tokens, sampling)
        for name, result in results.items():
            made = plain if name == PLAIN else _generate(engine, prompt, name, tokens, sampling)
            result.stats = result.stats + made.stats
            verdict = compare_outputs(engine, prompt, plain.token_ids, made.token_ids, sampling).verdict
            result.prompts += 1
            result.near_ties += verdict == "near_tie"
            result.different += verdict == "different"
    return results


def _generate(engine: Engine, prompt: Sequence[int], method: str, tokens: int, sampling: Sampling) -> Result:
    options = OPTIONS.get(method, {})
    config = GenerationConfig(method=method, options=options, sampling=sampling, max_new_tokens=tokens, ignore_eos=True)
    return engine.generate(prompt, config)


def check_lossless(
    outcome: Outcome,
    title: str,
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    *,
    tokens: int,
    stop: float,
    sampling: Sampling = GREEDY,
) -> None:
    """Run every method, and report: see `run_methods`."""
    if time.monotonic() > stop:
        outcome.note(f"no time for {title}")
        return
    report_methods(outcome, title, run_methods(engine, prompts, tokens=tokens, sampling=sampling, stop=stop))


def report_methods(outcome: Outcome, title: str, results: Mapping[str, MethodResult]) -> None:
    """Add a table and figures, and every method that is not lossless to the failures."""
    figures = {name: result.to_json(results[PLAIN]) for name, result in results.items()}
    outcome.record(title, figures)
    columns = ("tokens_per_s", "speedup", "accept_length", "nodes_per_pass", "draft_ms", "verify_ms", "other_ms")
    table = outcome.table(
        [title, "tok/s", "speedup", "accept", "nodes", "draft ms", "verify ms", "other ms", "prompts", "lossless"]
    )
    for name, row in figures.items():
        table.add([name, *(row[column] for column in columns), row["prompts"], _verdict(row)])
    for name, row in figures.items():
        outcome.expect(
            not row["different"], f"{title}: {name} differs from plain decoding on {row['different']} prompts"
        )


def _verdict(row: Mapping[str, Any]) -> str:
    if row["different"]:
        return "NO"
    return f"yes, {row['near_ties']} near ties" if row["near_ties"] else "yes"
