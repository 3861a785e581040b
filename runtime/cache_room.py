"""How many sequences there is memory for."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spec_trt.errors import ConfigError
from spec_trt.runtime.batch import Batch
from spec_trt.runtime.engine_size import (
    draft_row_bytes,
    has_fixed_cache,
    max_batch,
    max_length,
    target_row_bytes,
)
from spec_trt.runtime.target import Target

if TYPE_CHECKING:
    from spec_trt.runtime.engine import Engine
    from spec_trt.runtime.scheduler import SchedulerConfig

__all__ = ["CacheRoom", "Fits"]

_FEWEST_ROWS = 64
"""What a growing cache begins with."""

Fits = Callable[[int, int], bool]
"""Whether a number of sequences may have a number of rows each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRoom:
    """What a scheduler's sequences have memory for.

    Attributes:
        target: The model, with its cache.
        places: Sequences at once.
        fits: Whether a number of sequences may have a number of rows each.
    """

    target: Target
    places: int
    fits: Fits

    @classmethod
    def of(cls, engine: "Engine", config: "SchedulerConfig") -> "CacheRoom":
        """An engine of fixed shapes has all of its cache from the start; another one's grows."""
        places = min(config.slots, max_batch(engine.manifest))
        if not has_fixed_cache(engine.manifest):
            share = None if config.cache_bytes is None else _targets_share(engine, config.cache_bytes)
            least = _FEWEST_ROWS * target_row_bytes(engine.manifest)
            if share is not None and share < least:
                raise ConfigError(
                    f"cache_bytes must be some more than the {least} bytes of {_FEWEST_ROWS} tokens, found "
                    f"{config.cache_bytes}: raise it"
                )
            target = engine.new_target(cache_bytes=share)
            cache = target.cache
            return cls(
                target=target,
                places=places,
                fits=lambda batch, rows: share is None or cache.bytes_for(batch, rows) <= share,
            )
        if config.cache_bytes is not None:
            each = max_length(engine.manifest) * (target_row_bytes(engine.manifest) + draft_row_bytes(engine.manifest))
            places = min(places, config.cache_bytes // each)
            if not places:
                raise ConfigError(
                    f"cache_bytes must be at least the {each} bytes of one sequence of this engine, found "
                    f"{config.cache_bytes}: raise it, or build the engine with a smaller --max-length"
                )
        return cls(target=engine.new_target(batch=places), places=places, fits=lambda _batch, _rows: True)

    def batch(self, engine: "Engine", config: "SchedulerConfig") -> Batch:
        """The batch that lives in it."""
        return Batch(
            self.target,
            engine.new_heads,
            places=self.places,
            reuse_prefixes=config.reuse_prefixes,
            fits=self.fits,
            costs=engine.read_costs,
        )


def _targets_share(engine: "Engine", cache_bytes: int) -> int:
    """The target's part of a limit: while a draft's cache moves to a larger place, it takes thrice its rows."""
    target, draft = target_row_bytes(engine.manifest), 3 * draft_row_bytes(engine.manifest)
    return cache_bytes * target // (target + draft)
