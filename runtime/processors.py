"""From the logits of one position to the distribution that its token is drawn from."""

import numpy as np
from numpy.typing import NDArray

from spec_trt.errors import BackendError
from spec_trt.runtime.sampling import Sampling

__all__ = ["Probabilities", "distribution", "inverse_cdf", "penalize"]

Probabilities = NDArray[np.float64]

_BLOCK = 256
"""Tokens summed at once: a running sum over a whole vocabulary costs several times as much."""

_HEAVIEST = (256, 4096)
"""How many tokens are looked at first, and then, when only the likeliest ones matter."""


def penalize(logits: NDArray[np.float64], seen: NDArray[np.int64], penalty: float) -> None:
    """Make the tokens of a text less likely again, in place (Keskar et al. 2019, arXiv 1909.05858, section 4.1).

    Args:
        logits: [vocab].
        seen: The ids of the text's tokens, each once.
        penalty: Divides their positive logits, multiplies their negative ones.
    """
    chosen = logits[seen]
    logits[seen] = np.where(chosen > 0, chosen / penalty, chosen * penalty)


def distribution(logits: NDArray[np.float64], sampling: Sampling) -> Probabilities:
    """What temperature, top_k, top_p and min_p, in this order, make of logits.

    Tokens as likely as the last of `top_k` stay, so that no order among equals decides; of those that `top_p` is
    reached with, the lower ids.

    Args:
        logits: [vocab], finite but for those of impossible tokens.
        sampling: Its temperature is above 0.

    Returns:
        [vocab], summing to 1.

    Raises:
        BackendError: The logits are not numbers.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # a tiny temperature; the check below
        weights: Probabilities = np.exp((logits - logits.max()) / sampling.temperature)
    if not weights.sum() > 0:
        raise BackendError("the model's logits must be finite numbers, found others: use an engine of higher precision")
    if 0 < sampling.top_k < len(logits):
        weights[logits < np.partition(logits, -sampling.top_k)[-sampling.top_k]] = 0
    if sampling.top_p < 1:
        weights = _nucleus(weights, sampling.top_p)
    if sampling.min_p > 0:
        weights[weights < sampling.min_p] = 0  # the likeliest token's weight is 1
    weights /= weights.sum()
    return weights


def _nucleus(weights: Probabilities, top_p: float) -> Probabilities:
    """The fewest tokens that hold a share of all weight (Holtzman et al. 2020, arXiv 1904.09751, section 3.1)."""
    total = weights.sum()
    candidates = np.flatnonzero(weights > (1 - top_p) * total / len(weights))  # the rest is lighter than 1 - top_p
    heavy = candidates[_heaviest(weights[candidates], top_p * total)]
    order = heavy[np.argsort(-weights[heavy], kind="stable")]
    count = int(weights[order].cumsum().searchsorted(top_p * total)) + 1
    kept = np.zeros_like(weights)
    kept[order[:count]] = weights[order[:count]]
    return kept


def _heaviest(weights: Probabilities, wanted: float) -> NDArray[np.bool_]:
    """Those heavier than all others that hold so much weight: few in most texts, and few are quickly sorted."""
    for count in _HEAVIEST:
        if count < len(weights):
            heavy: NDArray[np.bool_] = weights >= np.partition(weights, -count)[-count]
            if weights[heavy].sum() >= wanted:
                return heavy
    return np.ones(len(weights), dtype=np.bool_)


def inverse_cdf(probs: Probabilities, uniform: float) -> int:
    """The token at which the running sum over ascending ids passes a share of the whole.

    Args:
        probs: [vocab], not all 0; need not sum to 1.
        uniform: The share, in [0, 1).
    """
    blocks = np.add.reduceat(probs, np.arange(0, len(probs), _BLOCK)).cumsum()
    wanted = uniform * blocks[-1]
    block = int(blocks.searchsorted(wanted, side="right"))
    inside = probs[block * _BLOCK : (block + 1) * _BLOCK].cumsum()
    token = int(inside.searchsorted(wanted - (blocks[block - 1] if block else 0.0), side="right"))
    if token == len(inside):  # the block's sum was rounded otherwise: its last possible token
        token = int(inside.searchsorted(inside[-1]))
    return block * _BLOCK + token
