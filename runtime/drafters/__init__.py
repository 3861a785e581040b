"""The drafting methods, by name."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spec_trt.errors import ConfigError
from spec_trt.runtime.drafters.autoregressive import AutoregressiveDrafter, AutoregressiveOptions
from spec_trt.runtime.drafters.eagle import EagleDrafter, StaticGrower
from spec_trt.runtime.drafters.eagle2 import DynamicGrower, Eagle2Options
from spec_trt.runtime.drafters.eagle_sampled import SampledGrower
from spec_trt.runtime.drafters.heads import HeadName, Heads
from spec_trt.runtime.drafters.jacobi import JacobiDrafter, JacobiOptions
from spec_trt.runtime.drafters.lookahead import LookaheadDrafter, LookaheadOptions
from spec_trt.runtime.drafters.medusa import MedusaDrafter
from spec_trt.runtime.drafters.ngram import NgramDrafter, NgramOptions
from spec_trt.runtime.drafters.options import read_options
from spec_trt.runtime.drafters.static_tree import StaticTreeOptions

if TYPE_CHECKING:
    from spec_trt.runtime.drafters.drafter import Drafter
    from spec_trt.runtime.sampler import Sampler
    from spec_trt.runtime.sampling import Sampling

__all__ = ["METHODS", "NO_HEADS", "Method", "Setting", "available_methods", "make_drafter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a drafter is made for.

    Attributes:
        vocab: Size of the target's vocabulary.
        eos_ids: Tokens that end a sequence; empty where they are to be ignored.
        heads: The engine's draft heads.
        drawer: Draws the drafts; None where the likeliest are taken.
    """

    vocab: int
    eos_ids: frozenset[int]
    heads: Heads
    drawer: "Sampler | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A drafting method.

    Attributes:
        summary: What it does, in a line.
        options: The dataclass of its options; each field's metadata has its `help`.
        build: Makes its drafter from options and setting.
        head: The trained head that it needs, a field of `Heads`; None for none.
        draws_drafts: Whether its drafts can be drawn: the tree's shape must not depend on what was drawn.
        typical: Whether it may be verified by typical acceptance.
    """

    summary: str
    options: type[Any]
    build: "Callable[[Any, Setting], Drafter]"
    head: HeadName | None = None
    draws_drafts: bool = False
    typical: bool = False


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
        typical=True,
    ),
    "eagle": Method(
        summary="a trained draft layer on the target's features fills a static tree, level by level",
        options=StaticTreeOptions,
        build=lambda options, setting: _static_eagle(options, setting),
        head="eagle",
        draws_drafts=True,
    ),
    "eagle2": Method(
        summary="the same draft layer grows a tree of the tokens that it finds likeliest",
        options=Eagle2Options,
        build=lambda options, setting: _dynamic_eagle(options, setting),
        head="eagle",
    ),
}


def _static_eagle(options: StaticTreeOptions, setting: Setting) -> EagleDrafter:
    model, eos_ids = setting.heads.required_eagle(), setting.eos_ids
    if setting.drawer is None:
        return EagleDrafter(model, StaticGrower(options, model=model, eos_ids=eos_ids))
    return EagleDrafter(model, SampledGrower(options, model=model, eos_ids=eos_ids, sampler=setting.drawer))


def _dynamic_eagle(options: Eagle2Options, setting: Setting) -> EagleDrafter:
    model = setting.heads.required_eagle()
    return EagleDrafter(model, DynamicGrower(options, model=model, eos_ids=setting.eos_ids))


def available_methods(heads: Heads) -> list[str]:
    """The methods that can run with these heads, in the table's order."""
    return [name for name, method in METHODS.items() if method.head is None or heads.has(method.head)]


def make_drafter(
    name: str,
    options: Mapping[str, Any],
    *,
    vocab: int,
    eos_ids: Collection[int],
    heads: Heads = NO_HEADS,
    sampler: "Sampler | None" = None,
) -> "Drafter":
    """The drafter of a method.

    Args:
        name: A key of `METHODS`.
        options: Values by option name; the method's defaults for the rest.
        vocab: Size of the target's vocabulary.
        eos_ids: Tokens that end a sequence; empty where they are to be ignored.
        heads: The engine's draft heads.
        sampler: The sequence's; None for greedy decoding.

    Raises:
        ConfigError: The method or an option is unknown, a value makes no sense, a head is missing, or the method does
            not go with the sampling.
    """
    method = METHODS.get(name)
    if method is None:
        raise ConfigError(f"method must be one of {', '.join(METHODS)}: found {name!r}; choose a known one")
    if sampler is not None:
        _check_sampling(name, method, sampler.sampling)
    drawer = sampler if sampler is not None and sampler.sampling.draws_drafts else None
    setting = Setting(vocab=vocab, eos_ids=frozenset(eos_ids), heads=heads, drawer=drawer)
    return method.build(read_options(name, method.options, options), setting)


def _check_sampling(name: str, method: Method, sampling: "Sampling") -> None:
    """Refuse a way to sample that the method can't keep to."""
    if sampling.draft_sampling and not method.draws_drafts:
        able = ", ".join(other for other in METHODS if METHODS[other].draws_drafts)
        raise ConfigError(
            f"draft_sampling needs a method whose tree has its shape before anything is drawn ({able}): "
            f"found {name}; choose such a method, or leave draft_sampling out"
        )
    if sampling.acceptance == "typical" and not method.typical:
        able = ", ".join(other for other in METHODS if METHODS[other].typical)
        raise ConfigError(
            f"typical acceptance is for {able}: found {name}; choose that method, or leave typical acceptance out"
        )
