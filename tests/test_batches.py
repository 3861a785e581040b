"""Many requests at once on the real model: every output is the one that its request has alone."""

from dataclasses import dataclass, replace

import pytest

from spec_trt.runtime import Engine, Generation, GenerationConfig, Result, Sampling, Scheduler, SchedulerConfig
from spec_trt.runtime.near_tie import compare_outputs

pytestmark = pytest.mark.slow

PROMPTS = [
    "Name three colours of the rainbow.",
    "Repeat this list twice: alpha, beta, gamma, delta, epsilon.",
    "Write a haiku about the sea.",
    "What is the capital of France? Answer in one word.",
    "Summarize in one sentence: The harbour bell rang at six, as it had rung every morning since the storm of 1911. "
    "The fishermen who came down to the harbour that morning found the water gone, and the boats lay in the mud.",
    "Write a short Python function that returns the sum of the squares of a list of numbers.",
]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request, and after how many pieces of its output it is cancelled."""

    prompt: list[int]
    config: GenerationConfig
    patience: int | None = None


def mixed(engine: Engine, count: int) -> list[Asked]:
    """Requests of all methods, with lengths, prompts and sampling that go round at other speeds; some give up."""
    return [
        Asked(
            prompt=engine.encode(PROMPTS[index % len(PROMPTS)], chat=True),
            config=GenerationConfig(
                method=engine.methods[index % len(engine.methods)],
                sampling=Sampling(temperature=0.8, top_p=0.95, repetition_penalty=1.1, seed=index)
                if index % 3 == 1
                else Sampling(),
                max_new_tokens=100 if index % 5 == 4 else 6 + 5 * index % 13,
                ignore_eos=index % 5 == 4,
                stop=["\n"] if index % 8 == 5 else [],
            ),
            patience=2 + index // 5 if index % 5 == 4 else None,
        )
        for index in range(count)
    ]


def leave(generation: Generation, patience: int) -> None:
    """Cancel a request once it has given so many pieces."""
    for _ in zip(range(patience), generation, strict=False):
        pass
    generation.close()


def run_together(engine: Engine, asked: list[Asked]) -> list[Result]:
    with Scheduler(engine, SchedulerConfig(slots=16)) as scheduler:
        generations = [scheduler.submit(each.prompt, each.config) for each in asked]
        for generation, each in zip(generations, asked, strict=True):
            if each.patience is not None:
                leave(generation, each.patience)
        return [generation.result() for generation in generations]


def run_alone(engine: Engine, asked: Asked, together: Result) -> Result:
    """The result that a request has alone, up to where it was cancelled."""
    if together.finish_reason != "cancelled":
        return engine.generate(asked.prompt, asked.config)
    return engine.generate(asked.prompt, replace(asked.config, max_new_tokens=len(together.token_ids)))


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_every_output_is_the_one_alone(smollm2_engine, precision):
    with Engine.load(smollm2_engine(precision)) as engine:
        asked = mixed(engine, 20)
        for each, found in zip(asked, run_together(engine, asked), strict=True):
            assert (found.finish_reason == "cancelled") == (each.patience is not None)
            expected = run_alone(engine, each, found)
            comparison = compare_outputs(engine, each.prompt, expected.token_ids, found.token_ids, each.config.sampling)
            assert comparison.verdict != "different", (each, comparison)
            if comparison.verdict == "equal" and each.patience is None:
                assert found.finish_reason == expected.finish_reason
