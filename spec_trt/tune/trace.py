"""What a tree of drafts would have been worth at every position of a generation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from spec_trt.runtime.acceptance_rule import acceptance_rule
from spec_trt.runtime.detokenizer import Detokenizer
from spec_trt.runtime.drafters import METHODS, make_drafter
from spec_trt.runtime.drafters.drafter import Drafter
from spec_trt.runtime.drafters.heads import Heads
from spec_trt.runtime.engine import Engine
from spec_trt.runtime.generation import GenerationConfig
from spec_trt.runtime.live_sequence import LiveSequence
from spec_trt.runtime.sampler import Sampler
from spec_trt.runtime.scheduler import Scheduler, SchedulerConfig
from spec_trt.runtime.stop import StopChecker
from spec_trt.runtime.tree import Tree
from spec_trt.tune.attempt import Attempt, RankPath, attempt_of
from spec_trt.tune.recording_drafter import RecordingDrafter
from spec_trt.tune.tree_file import tree_file

__all__ = ["Trace", "mean_past", "record_traces"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A generation.

    Attributes:
        prompt_tokens: Tokens of its prompt.
        attempts: Of each token that it emitted, what became of the tree drafted before it.
    """

    prompt_tokens: int
    attempts: Sequence[Attempt]


def mean_past(traces: Sequence[Trace]) -> float:
    """Committed rows of a pass, the mean over all tokens."""
    rows = [trace.prompt_tokens - 1 + number for trace in traces for number in range(len(trace.attempts))]
    return sum(rows) / len(rows)


def record_traces(
    engine: Engine,
    prompts: Sequence[list[int]],
    tree: Sequence[RankPath],
    run: GenerationConfig,
    on_trace: Callable[[], object] = lambda: None,
) -> list[Trace]:
    """Generate as plain decoding does, drafting a tree before every token.

    So every position is seen, whichever tree would begin a pass there: any tree within this one can be replayed on
    what was seen.

    Args:
        engine: The engine; idle.
        prompts: Of each, its tokens.
        tree: What is drafted; of all siblings in front of a node none is missing.
        run: The method, one with a static tree, how tokens are chosen, and how many of them.
        on_trace: Called after each generation.
    """
    traces = []
    with tree_file(tree) as file, Scheduler(engine, SchedulerConfig(slots=1)) as scheduler:
        for prompt in prompts:
            trees: list[Tree] = []
            sequence = _sequence(engine, prompt, replace(run, options={"tree": file}), trees)
            scheduler.run(sequence).result()
            text = sequence.text[len(prompt) :]
            attempts = [attempt_of(drafted, text[position:]) for position, drafted in enumerate(trees)]
            traces.append(Trace(prompt_tokens=len(prompt), attempts=attempts))
            on_trace()
    return traces


def _sequence(engine: Engine, prompt: Sequence[int], run: GenerationConfig, trees: list[Tree]) -> LiveSequence:
    model, method = engine.manifest.model, METHODS[run.method]
    sampler = Sampler(run.sampling, prompt, vocab=model.vocab)

    def draft(heads: Heads) -> Drafter:
        drafter = make_drafter(
            run.method, run.options, vocab=model.vocab, eos_ids=model.eos_ids, heads=heads, sampler=sampler
        )
        return RecordingDrafter(drafter, trees)

    return LiveSequence(
        prompt,
        draft=draft,
        head=method.head,
        acceptance=acceptance_rule(sampler),
        stopper=StopChecker(
            detokenizer=Detokenizer(_no_text),
            eos_ids=model.eos_ids,
            max_new_tokens=min(run.max_new_tokens, engine.max_length - len(prompt)),
        ),
    )


def _no_text(_token_ids: Sequence[int]) -> str:
    """No text is wanted."""
    return ""
