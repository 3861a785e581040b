"""The drafting methods, by name."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spec_trt.errors import ConfigError
from spec_trt.runtime.drafters.autoregressive import AutoregressiveDrafter, AutoregressiveOptions
from spec_trt.runtime.drafters.eagle import EagleDrafter, StaticGrower
from spec_trt.runtime.drafters.eagle2 import DynamicGrower, Eagle2Options
from spec_trt.runtime.drafters.heads import HeadName, Heads
from spec_trt.runtime.drafters.jacobi import JacobiDrafter, JacobiOptions
from spec_trt.runtime.drafters.lookahead import LookaheadDrafter, LookaheadOptions
from spec_trt.runtime.drafters.medusa import MedusaDrafter
from spec_trt.runtime.drafters.ngram import NgramDrafter, NgramOptions
from spec_trt.runtime.drafters.options import read_options
from spec_trt.runtime.drafters.static_tree import StaticTreeOptions

if TYPE_CHECKING:
    from spec_trt.runtime.drafters.drafter import Drafter

__all__ = ["METHODS", "NO_HEADS", "Method", "Setting", "available_methods", "make_drafter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a drafter is made for.

    Attributes:
        vocab: Size of the target's vocabulary.
        eos_ids: Tokens that end a sequence; empty where they are to be ignored.
        heads: The engine's draft heads.
    """

    vocab: int
    eos_ids: frozenset[int]
    heads: Heads


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A drafting method.

    Attributes:
        summary: What it does, in a line.
        options: The dataclass of its options; each field's metadata has its `help`.
        build: Makes its drafter from options and setting.
        head: The trained head that it needs, a field of `Heads`; None for none.
    """

    summary: str
    options: type[Any]
    build: "Callable[[Any, Setting], Drafter]"
    head: HeadName | None = None


NO_HEADS = Heads()

METHODS: dict[str, Method] = {
    "autoregressive": Method(
        summary="plain decoding, no drafts",
        options=AutoregressiveOptions,
        build=lambda _options, _setting: AutoregressiveDrafter(),
    ),
    "ngram": Method(
        summary="prompt lookup: repeat what followed the newest tokens before",
        options=NgramOptions,
        build=lambda options, setting: NgramDrafter(options, eos_ids=setting.eos_ids),
    ),
    "jacobi": Method(
        summary="the target's answers to a chain of guesses are the next guesses",
        options=JacobiOptions,
        build=lambda options, _setting: JacobiDrafter(options),
    ),
    "lookahead": Method(
        summary="a window of guesses that feeds a pool of n-grams",
        options=LookaheadOptions,
        build=lambda options, setting: LookaheadDrafter(options, vocab=setting.vocab, eos_ids=setting.eos_ids),
    ),
    "medusa": Method(
        summary="trained heads on the target's last hidden state fill a static tree",
        options=StaticTreeOptions,
        build=lambda options, setting: MedusaDrafter(
            options, model=setting.heads.required_medusa(), eos_ids=setting.eos_ids
        ),
        head="medusa",
    ),
    "eagle": Method(
        summary="a trained draft layer on the target's features fills a static tree, level by level",
        options=StaticTreeOptions,
        build=lambda options, setting: _eagle(StaticGrower, options, setting),
        head="eagle",
    ),
    "eagle2": Method(
        summary="the same draft layer grows a tree of the tokens that it finds likeliest",
        options=Eagle2Options,
        build=lambda options, setting: _eagle(DynamicGrower, options, setting),
        head="eagle",
    ),
}


def _eagle(grower: "type[StaticGrower] | type[DynamicGrower]", options: Any, setting: Setting) -> EagleDrafter:  # noqa: ANN401 - each method's own
    model = setting.heads.required_eagle()
    return EagleDrafter(model, grower(options, model=model, eos_ids=setting.eos_ids))


def available_methods(heads: Heads) -> list[str]:
    """The methods that can run with these heads, in the table's order."""
    return [name for name, method in METHODS.items() if method.head is None or heads.has(method.head)]


def make_drafter(
    name: str, options: Mapping[str, Any], *, vocab: int, eos_ids: Collection[int], heads: Heads = NO_HEADS
) -> "Drafter":
    """The drafter of a method.

    Args:
        name: A key of `METHODS`.
        options: Values by option name; the method's defaults for the rest.
        vocab: Size of the target's vocabulary.
        eos_ids: Tokens that end a sequence; empty where they are to be ignored.
        heads: The engine's draft heads.

    Raises:
        ConfigError: The method or an option is unknown, a value makes no sense, or a head is missing.
    """
    method = METHODS.get(name)
    if method is None:
        raise ConfigError(f"method must be one of {', '.join(METHODS)}: found {name!r}; choose a known one")
    setting = Setting(vocab=vocab, eos_ids=frozenset(eos_ids), heads=heads)
    return method.build(read_options(name, method.options, options), setting)
