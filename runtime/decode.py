"""The decode loop: propose, verify, accept, commit, observe. It knows no method by name."""

from collections.abc import Sequence

from spec_trt.runtime.budget import Budget
from spec_trt.runtime.live_sequence import LiveSequence
from spec_trt.runtime.stats import shared_time
from spec_trt.runtime.target import Target

__all__ = ["decode_pass"]


def decode_pass(sequences: Sequence[LiveSequence], target: Target, budget: Budget, *, coming: Sequence[int]) -> None:
    """Take every sequence one pass further: what plain decoding emits, in blocks.

    A prompt's last token is the first root, so every emitted token comes from here.

    Args:
        sequences: Those of the target's first places, in their order, their prompts read.
        target: The model.
        budget: What sizes their trees.
        coming: Of each one that will soon decode with them, the rows that it will have then.
    """
    needs = frozenset[str]().union(*(sequence.needs for sequence in sequences))
    costs = [sequence.stats for sequence in sequences]

    with shared_time(costs, "draft"):
        allowances = budget.allow(sequences, target.cache.lengths[: len(sequences)].tolist(), coming=coming)
    trees = [sequence.propose(allowance) for sequence, allowance in zip(sequences, allowances, strict=True)]
    with shared_time(costs, "verify"):
        verified = target.verify(trees, needs)
    passes = list(zip(sequences, trees, verified.outputs, strict=True))
    decisions = [sequence.accept(tree, out) for sequence, tree, out in passes]
    with shared_time(costs, "commit"):
        target.cache.commit(verified.new_rows, [path for path, _ in decisions])
    for (sequence, tree, out), (path, extra) in zip(passes, decisions, strict=True):
        sequence.emit(tree, path, extra)
        sequence.observe(tree, out, path, extra)
