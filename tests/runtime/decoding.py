"""One sequence decoded with parts of a test's own: no engine, no places, no thread."""

from collections.abc import Sequence

from spec_trt.runtime.accept import GREEDY, Acceptance
from spec_trt.runtime.budget import Budget
from spec_trt.runtime.decode import decode_pass
from spec_trt.runtime.detokenizer import Detokenizer
from spec_trt.runtime.drafters.drafter import Drafter
from spec_trt.runtime.drafters.heads import Heads
from spec_trt.runtime.live_sequence import LiveSequence
from spec_trt.runtime.stop import StopChecker


def live_sequence(
    prompt: Sequence[int], drafter: Drafter, count: int, acceptance: Acceptance = GREEDY, **options
) -> LiveSequence:
    stopper = StopChecker(detokenizer=Detokenizer(lambda _ids: ""), eos_ids=(), max_new_tokens=count)
    return LiveSequence(prompt, draft=lambda _heads: drafter, acceptance=acceptance, stopper=stopper, **options)


def decode(
    prompt: Sequence[int], *, target, drafter: Drafter, count: int, acceptance: Acceptance = GREEDY
) -> LiveSequence:
    """A whole generation; raises what ended it."""
    sequence, budget = live_sequence(prompt, drafter, count, acceptance), Budget()
    out = target.prefill(prompt[:-1], drafter.needs)
    sequence.begin(Heads(), 0)
    if len(prompt) > 1:
        sequence.has_read({} if out is None else out.tensors, len(prompt) - 1)
    while not sequence.ended:
        decode_pass([sequence], target, budget, coming=())
    if sequence.feed.error is not None:
        raise sequence.feed.error
    return sequence


def blocks(sequence: LiveSequence) -> list[list[int]]:
    """Each pass's tokens."""
    return [emission.token_ids for emission in sequence.feed.emissions]


def tokens(sequence: LiveSequence) -> list[int]:
    return [token for block in blocks(sequence) for token in block]
