"""Whether two greedy outputs differ, and whether a difference is only rounding.

Passes of different shapes add floating-point numbers in different orders. Where the target's two best
logits are closer than such rounding, either token is as good a greedy choice as the other. Only a first
difference can be such a near tie: what follows it has another prefix.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from spec_trt.runtime.engine import Engine

__all__ = ["NEAR_TIE_LOGITS", "Comparison", "compare_outputs"]

NEAR_TIE_LOGITS = {"fp32": 1e-3, "fp16": 0.1, "bf16": 0.5, "int8": 1.0, "int4": 0.5}
"""Per precision, the largest gap that counts as a near tie. In int8 and int4 a last-bit difference in attention
can flip the rounding of an activation, and every later layer carries it on: logits of the same text, run in passes
of other shapes, were measured to differ by 0.2 (standard deviation) in int8. In fp16 and bf16 a logit of 16 to 32 has
steps of 0.016 and 0.125; theirs are a few such steps, and were not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Of two outputs: equal, a near tie at the first difference, or different.

    Attributes:
        verdict: The outcome.
        position: Index of the first difference; None when equal.
        gap: How far the worse of the two choices is behind the target's best logit there; None when equal.
    """

    verdict: Literal["equal", "near_tie", "different"]
    position: int | None = None
    gap: float | None = None


def compare_outputs(engine: Engine, prompt: Sequence[int], expected: Sequence[int], found: Sequence[int]) -> Comparison:
    """Compare a method's output with plain decoding's.

    Args:
        engine: The engine that made both; idle.
        prompt: The prompt's token ids.
        expected: Plain decoding's tokens, without an end-of-sequence token.
        found: The method's tokens.
    """
    if list(expected) == list(found):
        return Comparison(verdict="equal")
    shorter = min(len(expected), len(found))
    position = next((i for i in range(shorter) if expected[i] != found[i]), shorter)
    logits = engine.next_logits([*prompt, *expected[:position]]).float()
    gap = max(_behind(engine, logits, tokens[position : position + 1]) for tokens in (expected, found))
    verdict: Literal["near_tie", "different"] = "near_tie" if gap < NEAR_TIE_LOGITS[engine.precision] else "different"
    return Comparison(verdict=verdict, position=position, gap=gap)


def _behind(engine: Engine, logits: Tensor, choice: Sequence[int]) -> float:
    """How far a choice is behind the best logit; no token stands for the end of the sequence."""
    candidates = list(choice) or engine.manifest.model.eos_ids
    return float(logits.max() - logits[candidates].max()) if candidates else float("inf")
