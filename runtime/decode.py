"""The decode loop: propose, verify, accept, commit, observe. It knows no method by name."""

from collections.abc import Iterator, Sequence

from spec_trt.runtime.accept import GREEDY, Acceptance, emitted_tokens
from spec_trt.runtime.drafters.drafter import Drafter
from spec_trt.runtime.stats import Stats
from spec_trt.runtime.target import Target

__all__ = ["decode"]


def decode(
    prompt: Sequence[int],
    *,
    target: Target,
    drafter: Drafter,
    max_new_tokens: int,
    stats: Stats,
    acceptance: Acceptance = GREEDY,
) -> Iterator[list[int]]:
    """Generate, yielding each pass's tokens: what plain decoding emits, in blocks.

    The prompt's last token is the first root: prefill runs the ones before it, so every emitted token
    comes from a verify pass.

    Args:
        prompt: At least one token.
        target: The model, its cache free for this sequence.
        drafter: The method; started here.
        max_new_tokens: Tokens to emit, never more.
        stats: Filled as the generation goes.
        acceptance: The rule by which drafts are kept, made for this sequence.
    """
    needs = drafter.needs | acceptance.needs
    stats.prompt_tokens += len(prompt)
    with stats.time("prefill"):
        prefilled = target.prefill(prompt[:-1], drafter.needs)
        drafter.start(prompt, prefilled)
    remaining = max_new_tokens
    while remaining > 0:
        with stats.time("draft"):
            tree = drafter.propose(remaining - 1)
        with stats.time("verify"):
            verified = target.verify([tree], needs)
        with stats.time("other"):
            [out] = verified.outputs
            path, extra = acceptance.accept(tree, out)
            target.cache.commit(verified.new_rows, [path])
        with stats.time("draft"):
            drafter.observe(tree, out, path, extra)
        stats.record_pass(nodes=len(tree), accepted=len(path) - 1)
        remaining -= len(path)
        yield emitted_tokens(tree, path, extra)
