"""How the next token is chosen: what a request may ask for."""

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from spec_trt.errors import ConfigError

__all__ = ["AcceptanceName", "Sampling"]

AcceptanceName = Literal["lossless", "typical"]

_SEEDS = 2**64


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the next token is chosen from the logits; greedy decoding by default.

    The repetition penalty comes first, then temperature, top_k, top_p and min_p, as in transformers. All of it is
    applied to every position on its own prefix, whatever the method drafts.

    Raises:
        ConfigError: A value is out of range.
    """

    temperature: float = field(
        default=0.0, metadata={"help": "Divides the logits: above 1 more even, below 1 more certain; 0 is greedy."}
    )
    top_k: int = field(default=0, metadata={"help": "Draw among so many likeliest tokens; 0: all."})
    top_p: float = field(
        default=1.0, metadata={"help": "Draw among the likeliest tokens that hold this share of probability; 1: all."}
    )
    min_p: float = field(
        default=0.0, metadata={"help": "Leave out tokens below this share of the likeliest one's probability; 0: none."}
    )
    repetition_penalty: float = field(
        default=1.0,
        metadata={"help": "Divides positive logits of tokens that the text holds, multiplies negative ones; 1: none."},
    )
    seed: int = field(
        default=0, metadata={"help": "The same seed draws the same output again; another one another output."}
    )
    draft_sampling: bool = field(
        default=False, metadata={"help": "Draw the drafts too, instead of the likeliest; eagle only, lossless in law."}
    )
    acceptance: AcceptanceName = field(
        default="lossless", metadata={"help": "Typical accepts any likely draft; medusa only, NOT lossless."}
    )
    typical_epsilon: float = field(
        default=0.09, metadata={"help": "Typical acceptance: a draft this likely is accepted anyway."}
    )
    typical_alpha: float = field(
        default=0.3, metadata={"help": "Typical acceptance: else one likelier than this share of exp(-entropy)."}
    )

    def __post_init__(self) -> None:
        _check_number("temperature", self.temperature, at_least=0)
        _check_integer("top_k", self.top_k, below=None)
        _check_number("top_p", self.top_p, above=0, at_most=1)
        _check_number("min_p", self.min_p, at_least=0, at_most=1)
        _check_number("repetition_penalty", self.repetition_penalty, above=0)
        _check_integer("seed", self.seed, below=_SEEDS)
        _check_number("typical_epsilon", self.typical_epsilon, above=0, at_most=1)
        _check_number("typical_alpha", self.typical_alpha, above=0, below=1)
        if self.acceptance not in get_args(AcceptanceName):
            raise ConfigError(
                f"acceptance must be one of {', '.join(get_args(AcceptanceName))}: found {self.acceptance!r}; "
                "choose one of them"
            )
        if not isinstance(self.draft_sampling, bool):
            raise ConfigError(
                f"draft_sampling must be true or false: found {self.draft_sampling!r}; give one of the two"
            )

    @property
    def is_greedy(self) -> bool:
        """Whether nothing is drawn: the likeliest token is taken, after the repetition penalty."""
        return self.temperature == 0

    @property
    def draws_drafts(self) -> bool:
        """Whether the drafts are drawn: they never are where the target's tokens are not."""
        return self.draft_sampling and not self.is_greedy


def _check_number(
    name: str,
    value: object,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
) -> None:
    """Refuse what is not a finite number in range."""
    inside = (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and (at_least is None or value >= at_least)
        and (above is None or value > above)
        and (at_most is None or value <= at_most)
        and (below is None or value < below)
    )
    if not inside:
        bounds = {"at least": at_least, "above": above, "at most": at_most, "below": below}
        words = " and ".join(f"{word} {bound:g}" for word, bound in bounds.items() if bound is not None)
        raise ConfigError(f"{name} must be a number {words}: found {value!r}; give one in range")


def _check_integer(name: str, value: object, *, below: int | None) -> None:
    """Refuse what is not an integer from 0 on."""
    inside = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if not inside or (below is not None and value >= below):  # type: ignore[operator]
        limit = "" if below is None else f" below {below}"
        raise ConfigError(f"{name} must be an integer of at least 0{limit}: found {value!r}; give one in range")
