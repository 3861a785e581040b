"""What tree tuning is asked for."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from spec_trt.errors import ConfigError
from spec_trt.runtime.allowance import BudgetName
from spec_trt.runtime.drafters import METHODS
from spec_trt.runtime.drafters.static_tree import StaticTreeOptions
from spec_trt.runtime.sampling import Sampling

__all__ = ["TuneConfig", "static_tree_methods"]


def static_tree_methods() -> list[str]:
    """The methods that draft a static tree."""
    return [name for name, method in METHODS.items() if method.options is StaticTreeOptions]


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneConfig:
    """What to tune, and by what.

    Attributes:
        methods: Methods with a static tree; all that the engine has heads for when empty.
        max_nodes: Nodes of a tree below its root, at the most.
        max_new_tokens: Per generation.
        repeats: Rounds per held-out prompt.
        sampling: How tokens are chosen.
        budget: What sizes the trees that are measured: the whole tree is what is tuned, `auto` takes beginnings of it.

    Raises:
        ConfigError: A value makes no sense.
    """

    methods: Sequence[str] = ()
    max_nodes: int = 32
    max_new_tokens: int = 128
    repeats: int = 3
    sampling: Sampling = field(default_factory=Sampling)
    budget: BudgetName = "fixed"

    def __post_init__(self) -> None:
        unfit = [name for name in self.methods if name not in static_tree_methods()]
        if unfit:
            raise ConfigError(
                f"only methods with a static tree can be tuned ({', '.join(static_tree_methods())}): "
                f"found {', '.join(unfit)}; leave it out"
            )
        if len(set(self.methods)) < len(self.methods):
            raise ConfigError(f"a method can be tuned once: found {', '.join(self.methods)}; name each once")
        if self.sampling.draft_sampling or self.sampling.acceptance != "lossless":
            raise ConfigError(
                "a tree is tuned for outputs that are plain decoding's: found draft_sampling or typical acceptance; "
                "leave it out"
            )
        numbers = {"max_nodes": self.max_nodes, "max_new_tokens": self.max_new_tokens, "repeats": self.repeats}
        for name, number in numbers.items():
            if number < 1:
                raise ConfigError(f"{name} must be at least 1, found {number}")
