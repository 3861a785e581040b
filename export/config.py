"""What `spec-trt export` is asked to do."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from spec_trt.errors import ConfigError

__all__ = ["DTYPES", "STEPS", "Dtype", "ExportConfig"]

Dtype = Literal["fp32", "fp16", "bf16"]
STEPS = ("load", "trace", "check", "finish")
DTYPES: tuple[Dtype, ...] = get_args(Dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportConfig:
    """One export.

    Attributes:
        model: A local Hugging Face directory, a hub id, or a `.gguf` file.
        output: The bundle directory to make.
        dtype: Of weights, activations and cache.
        features: Whether the base graph gives EAGLE-3's three features too.
        check: Whether to compare the graph with PyTorch before the bundle is kept.
        replace: Whether an existing `output` may be replaced.
    """

    model: str
    output: Path
    dtype: Dtype = "fp32"
    features: bool = False
    check: bool = True
    replace: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError(f"unknown dtype {self.dtype!r}: expected one of {', '.join(DTYPES)}")
        if not self.model:
            raise ConfigError("no model given: expected a directory, a hub id or a .gguf file")
