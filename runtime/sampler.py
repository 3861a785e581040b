"""One sequence's random choices: what its text makes of logits, and its uniforms."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from spec_trt.runtime.processors import Probabilities, distribution, inverse_cdf, penalize
from spec_trt.runtime.sampling import Sampling
from spec_trt.runtime.uniforms import Stream, uniform

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Ids", "Logits", "Sampler", "as_array"]

Logits: TypeAlias = "Tensor | NDArray[Any]"
Ids = NDArray[np.int64]


class Sampler:
    """Chooses tokens of one sequence, and follows its text.

    Attributes:
        sampling: What was asked for.
        vocab: Size of the target's vocabulary.
        position: The output position that is chosen next; 0 behind the prompt.

    Args:
        sampling: What is asked for.
        prompt: The prompt's tokens.
        vocab: Size of the target's vocabulary.
    """

    def __init__(self, sampling: Sampling, prompt: Sequence[int], *, vocab: int) -> None:
        self.sampling, self.vocab, self.position = sampling, vocab, 0
        self._penalizes = sampling.repetition_penalty != 1
        self._seen = np.zeros(vocab, dtype=np.bool_)
        self._seen[list(prompt)] = True

    def record(self, token: int) -> None:
        """Append a token to the text."""
        self._seen[token] = True
        self.position += 1

    def choose(self, logits: "Logits") -> int:
        """Choose the next token and append it: the likeliest one at temperature 0, else one drawn by `uniform`."""
        token = int(self.scores(logits).argmax()) if self.sampling.is_greedy else self.draw(self.probs(logits))
        self.record(token)
        return token

    def draw(self, probs: Probabilities) -> int:
        """The token of the next position, from a distribution."""
        return inverse_cdf(probs, self.uniform("token"))

    def uniform(self, stream: Stream, draw: int = 0) -> float:
        """A number of the next position; see `uniforms.uniform`."""
        return uniform(self.sampling.seed, stream, self.position, draw)

    def probs(self, logits: "Logits", path: Sequence[int] = (), ids: Ids | None = None) -> Probabilities:
        """The distribution of a token, of the shape of the logits; see `scores` and `distribution`."""
        return distribution(self.scores(logits, path, ids), self.sampling)

    def scores(self, logits: "Logits", path: Sequence[int] = (), ids: Ids | None = None) -> NDArray[np.float64]:
        """Logits with the repetition penalty of a token's own prefix.

        Args:
            logits: [vocab], a tensor anywhere or an array.
            path: Tokens between the text and the one to choose.
            ids: The tokens that the logits are of, where they are not of all.
        """
        scores = as_array(logits)
        if self._penalizes:
            seen = self._seen_with(path)
            places = np.flatnonzero(seen if ids is None else seen[ids])
            penalize(scores, places, self.sampling.repetition_penalty)
        return scores

    def _seen_with(self, path: Sequence[int]) -> NDArray[np.bool_]:
        if not path:
            return self._seen
        seen = self._seen.copy()
        seen[list(path)] = True
        return seen


def as_array(logits: "Logits") -> NDArray[np.float64]:
    """Logits as numbers of the host that may be written to: [vocab]."""
    row = logits if isinstance(logits, np.ndarray) else logits.float().cpu().numpy()
    copy: NDArray[np.float64] = row.astype(np.float64)
    return copy
