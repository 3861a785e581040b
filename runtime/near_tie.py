"""Whether two greedy outputs differ, and whether a difference is only rounding.

Passes of different shapes add floating-point numbers in different orders. Where the target's two best
logits are closer than such rounding, either token is as good a greedy choice as the other. Only a first
difference can be such a near tie: what follows it has another prefix.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from spec_trt.runtime.engine import Engine

__all__ = ["NEAR_TIE_LOGITS", "Comparison", "compare_outputs"]

NEAR_TIE_LOGITS = {"fp32": 1e-3, "int8": 0.25, "int4": 0.05}
"""Per precision, the largest gap between the two best logits that counts as a near tie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Of two outputs: equal, a near tie at the first difference, or different.

    Attributes:
        verdict: The outcome.
        position: Index of the first difference; None when equal.
        gap: The target's two best logits' distance there; None when equal.
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
    best = engine.next_logits([*prompt, *expected[:position]]).float().topk(2).values
    gap = float(best[0] - best[1])
    precision = engine.manifest.engine.precision if engine.manifest.engine else engine.manifest.model.dtype
    verdict: Literal["near_tie", "different"] = "near_tie" if gap < NEAR_TIE_LOGITS[precision] else "different"
    return Comparison(verdict=verdict, position=position, gap=gap)
