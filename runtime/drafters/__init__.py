"""The drafting methods, by name."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spec_trt.errors import ConfigError
from spec_trt.runtime.drafters.autoregressive import AutoregressiveDrafter, AutoregressiveOptions
from spec_trt.runtime.drafters.jacobi import JacobiDrafter, JacobiOptions
from spec_trt.runtime.drafters.lookahead import LookaheadDrafter, LookaheadOptions
from spec_trt.runtime.drafters.ngram import NgramDrafter, NgramOptions
from spec_trt.runtime.drafters.options import read_options

if TYPE_CHECKING:
    from spec_trt.runtime.drafters.drafter import Drafter

__all__ = ["METHODS", "Method", "make_drafter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A drafting method.

    Attributes:
        summary: What it does, in a line.
        options: The dataclass of its options; each field's metadata has its `help`.
        build: Makes its drafter from options, the size of the vocabulary, and the EOS ids.
    """

    summary: str
    options: type[Any]
    build: "Callable[[Any, int, frozenset[int]], Drafter]"


METHODS: dict[str, Method] = {
    "autoregressive": Method(
        summary="plain decoding, no drafts",
        options=AutoregressiveOptions,
        build=lambda _options, _vocab, _eos_ids: AutoregressiveDrafter(),
    ),
    "ngram": Method(
        summary="prompt lookup: repeat what followed the newest tokens before",
        options=NgramOptions,
        build=lambda options, _vocab, eos_ids: NgramDrafter(options, eos_ids=eos_ids),
    ),
    "jacobi": Method(
        summary="the target's answers to a chain of guesses are the next guesses",
        options=JacobiOptions,
        build=lambda options, _vocab, _eos_ids: JacobiDrafter(options),
    ),
    "lookahead": Method(
        summary="a window of guesses that feeds a pool of n-grams",
        options=LookaheadOptions,
        build=lambda options, vocab, eos_ids: LookaheadDrafter(options, vocab=vocab, eos_ids=eos_ids),
    ),
}


def make_drafter(name: str, options: Mapping[str, Any], *, vocab: int, eos_ids: Collection[int]) -> "Drafter":
    """The drafter of a method.

    Args:
        name: A key of `METHODS`.
        options: Values by option name; the method's defaults for the rest.
        vocab: Size of the target's vocabulary.
        eos_ids: Tokens that end a sequence; empty where they are to be ignored.

    Raises:
        ConfigError: The method or an option is unknown, or a value makes no sense.
    """
    method = METHODS.get(name)
    if method is None:
        raise ConfigError(f"method must be one of {', '.join(METHODS)}: found {name!r}; choose a known one")
    return method.build(read_options(name, method.options, options), vocab, frozenset(eos_ids))
