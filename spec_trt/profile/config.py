"""What to profile."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spec_trt.errors import ConfigError
from spec_trt.profile.cost_curve import CurveConfig
from spec_trt.prompts import PromptRecord

__all__ = ["ProfileConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileConfig:
    """What to profile.

    Attributes:
        engine: The engine's directory.
        prompts: To answer; when None, short ones of several kinds, as many as a minute allows.
        methods: By name; all that the engine can run when None. Plain decoding always runs.
        options: By method, its own options.
        max_new_tokens: Of an answer.
        raw: Whether to leave the chat template out.
        curve: Which passes to measure.
        kernels: Whether to profile the operators too.
        device: See `Engine.load`.
        threads: See `Engine.load`.
        cuda_graphs: See `Engine.load`.
        verify: See `Engine.load`.
    """

    engine: Path
    prompts: Sequence[PromptRecord] | None = None
    methods: Sequence[str] | None = None
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    max_new_tokens: int = 64
    raw: bool = False
    curve: CurveConfig = field(default_factory=CurveConfig)
    kernels: bool = False
    device: str | None = None
    threads: int | None = None
    cuda_graphs: bool = True
    verify: bool = False

    def __post_init__(self) -> None:
        if self.max_new_tokens < 2:
            raise ConfigError(f"max_new_tokens must be at least 2, found {self.max_new_tokens}: one is no step yet")
