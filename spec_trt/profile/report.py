"""A profile: all that was measured of an engine on a machine, and what follows from it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from spec_trt.profile.break_even import BreakEven, Standing
from spec_trt.profile.generations import MethodLatency
from spec_trt.profile.kernels import KernelProfile
from spec_trt.profile.overhead import Overhead
from spec_trt.runtime.costs import Costs

__all__ = ["PROFILE_VERSION", "Best", "EngineLine", "Profile"]

PROFILE_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLine:
    """Which engine it was.

    Attributes:
        name: Of its directory.
        model: Where its weights came from.
        backend: What runs it.
        library_version: Of that.
        precision: What it computes in.
    """

    name: str
    model: str
    backend: str
    library_version: str
    precision: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """What would be quickest here for one sequence, on prompts like these.

    Attributes:
        method: Its name.
        nodes: Of its trees at the most, below the root.
        accept_length: Predicted.
        speedup: Predicted, over plain decoding.
        as_it_is: Whether that is what the method does by default.
    """

    method: str
    nodes: int
    accept_length: float
    speedup: float
    as_it_is: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The whole of it; `profile/schema.json` describes its JSON.

    Attributes:
        engine: Which engine it was.
        created: When, in ISO 8601.
        load_s: Seconds to open its graphs.
        tokenizer_load_s: Seconds to load its tokenizer.
        peak_memory_bytes: The most memory while generating, Python's libraries included; a GPU's where that runs it.
        prefill_tokens_per_s: Of a long prompt.
        overhead: The loop's own time, by batch.
        costs: Of passes and drafts.
        prompts: How many were answered.
        max_new_tokens: Tokens of an answer at the most.
        methods: How each method's generations went, plain decoding's first.
        past: Committed rows that the break-even table is for.
        break_even: What trees of some sizes must reach.
        standings: Where each method stands.
        best: What would be quickest.
        kernels: Where the time of passes goes; empty where not asked for.
    """

    engine: EngineLine
    created: str
    load_s: float
    tokenizer_load_s: float
    peak_memory_bytes: int
    prefill_tokens_per_s: float
    overhead: Sequence[Overhead]
    costs: Costs
    prompts: int
    max_new_tokens: int
    methods: Sequence[MethodLatency]
    past: int
    break_even: Sequence[BreakEven]
    standings: Sequence[Standing]
    best: Best
    kernels: Sequence[KernelProfile] = ()
    version: int = PROFILE_VERSION

    def to_json(self) -> dict[str, Any]:
        """The figures by name; see `profile/schema.json`."""
        return {
            **asdict(self),
            "standings": [asdict(standing) | {"error": standing.error} for standing in self.standings],
        }
