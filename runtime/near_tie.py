"""Whether two outputs differ, and whether a difference is only rounding.

Passes of different shapes add floating-point numbers in different orders. Where the target's two best
logits are closer than such rounding, either token is as good a greedy choice as the other; and where a drawn number
lies that close to the cut between two tokens' shares, either is as good a draw. Only a first difference can be such a
near tie: what follows it has another prefix.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from spec_trt.runtime.engine import Engine
from spec_trt.runtime.processors import distribution
from spec_trt.runtime.sampler import Sampler
from spec_trt.runtime.sampling import Sampling
from spec_trt.runtime.uniforms import uniform

__all__ = ["NEAR_TIE_LOGITS", "Comparison", "compare_outputs"]

NEAR_TIE_LOGITS = {"fp32": 1e-3, "fp16": 0.1, "bf16": 0.5, "int8": 1.0, "int4": 0.5}
"""Per precision, the largest gap that counts as a near tie. In int8 and int4 a last-bit difference in attention
can flip the rounding of an activation, and every later layer carries it on: logits of the same text, run in passes
of other shapes, were measured to differ by 0.2 (standard deviation) in int8. In fp16 and bf16 a logit of 16 to 32 has
steps of 0.016 and 0.125; theirs are a few such steps, and were not measured."""

_LARGEST_EXPONENT = 700.0
"""Of a float64, nearly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Of two outputs: equal, a near tie at the first difference, or different.

    Attributes:
        verdict: The outcome; outputs that have only their law in common, or not even that, are not compared.
        position: Index of the first difference; None when equal.
        gap: How far the logits would have to move for the worse of the two choices there; None when equal. Of greedy
            choices, how far it is behind the target's best logit.
    """

    verdict: Literal["equal", "near_tie", "different", "not_compared"]
    position: int | None = None
    gap: float | None = None


def compare_outputs(
    engine: Engine,
    prompt: Sequence[int],
    expected: Sequence[int],
    found: Sequence[int],
    sampling: Sampling | None = None,
) -> Comparison:
    """Compare a method's output with plain decoding's.

    Args:
        engine: The engine that made both; idle.
        prompt: The prompt's token ids.
        expected: Plain decoding's tokens, without an end-of-sequence token.
        found: The method's tokens.
        sampling: How both were made; greedily by default.
    """
    if list(expected) == list(found):
        return Comparison(verdict="equal")
    shorter = min(len(expected), len(found))
    position = next((i for i in range(shorter) if expected[i] != found[i]), shorter)
    text = [*prompt, *expected[:position]]
    choice = _Choice.of(engine, text, position, sampling or Sampling())
    # No token stands for the end of the sequence.
    choices = [tokens[position : position + 1] or engine.manifest.model.eos_ids for tokens in (expected, found)]
    gap = max(min(map(choice.gap, tokens), default=math.inf) for tokens in choices)
    return Comparison(verdict="near_tie" if gap < choice.bound else "different", position=position, gap=gap)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """What one token was chosen by.

    Attributes:
        scores: [vocab]: the logits after the repetition penalty.
        sampling: The rule.
        uniform: The position's number.
        bound: The largest gap of a near tie.
    """

    scores: NDArray[np.float64]
    sampling: Sampling
    uniform: float
    bound: float

    @classmethod
    def of(cls, engine: Engine, text: Sequence[int], position: int, sampling: Sampling) -> "_Choice":
        """What the token behind a text was chosen by, at an output position."""
        sampler = Sampler(sampling, text, vocab=engine.manifest.model.vocab)
        return cls(
            scores=sampler.scores(engine.next_logits(text)),
            sampling=sampling,
            uniform=uniform(sampling.seed, "token", position),
            bound=NEAR_TIE_LOGITS[engine.precision],
        )

    def gap(self, token: int) -> float:
        """How far logits would have to move for a token to be chosen."""
        return float(self.scores.max() - self.scores[token]) if self.sampling.is_greedy else self._gap_to_cut(token)

    def _gap_to_cut(self, token: int) -> float:
        """How far the number lies outside the token's share, in log-odds times temperature.

        That is by how much logits on the one side of the cut would have to move against those on the other. What
        top_k, top_p and min_p may or may not take out, as close as that to their own cuts, counts for either side.
        """
        temperature = self.sampling.temperature
        weights = np.exp((self.scores - self.scores.max()) / temperature)
        possible, certain = (np.where(self._kept(slack), weights, 0.0) for slack in (self.bound, -self.bound))
        if not possible[token]:
            return math.inf
        drawn = _log_odds(max(self.uniform, 2.0**-53), 1 - self.uniform)
        lowest = _log_odds(certain[:token].sum(), possible[token:].sum())
        highest = _log_odds(possible[: token + 1].sum(), certain[token + 1 :].sum())
        return temperature * max(0.0, lowest - drawn, drawn - highest)

    def _kept(self, slack: float) -> NDArray[np.bool_]:
        """[vocab]: the tokens that could be drawn if the cuts were wider, or narrower, by some logits."""
        sampling = self.sampling
        exponent = max(-_LARGEST_EXPONENT, min(_LARGEST_EXPONENT, slack / sampling.temperature))
        if 0 < sampling.top_k < len(self.scores):
            last = np.partition(self.scores, -sampling.top_k)[-sampling.top_k]
            sampling = replace(sampling, top_k=max(1, int((self.scores >= last - slack).sum())))
        if sampling.top_p < 1:
            log_odds = _log_odds(sampling.top_p, 1 - sampling.top_p) + exponent
            sampling = replace(sampling, top_p=1 / (1 + math.exp(min(_LARGEST_EXPONENT, -log_odds))))
        if sampling.min_p > 0:
            sampling = replace(sampling, min_p=min(1.0, sampling.min_p * math.exp(-exponent)))
        return distribution(self.scores, sampling) > 0


def _log_odds(share: float, rest: float) -> float:
    """Infinite where one of the two is nothing."""
    with np.errstate(divide="ignore"):
        return float(np.log(share) - np.log(rest))
