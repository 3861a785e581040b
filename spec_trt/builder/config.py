"""What to build, and how."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from spec_trt.errors import ConfigError

__all__ = ["BACKENDS", "PRECISIONS", "BuildConfig", "Precision"]

Precision = Literal["fp32", "int8", "int4"]

PRECISIONS: tuple[str, ...] = get_args(Precision)
BACKENDS = ("ort",)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildConfig:
    """A build.

    Attributes:
        bundle: The bundle directory.
        out: The engine directory to make.
        backend: What will run the engine.
        precision: `fp32`; `int8`, weights per output channel and activations per row; or `int4`,
            weights in blocks.
        calibration: The text to measure activations on, for int8 and int4; a built-in one when None.
        int4_block: Inputs per scale in int4.
        int4_accuracy_level: 4 rounds activations to int8 per row and block, 1 keeps them float32.
        force: Whether an engine of other settings in `out` may be replaced.
        verify: Whether to check the hashes of the bundle's files too, not only their sizes.
    """

    bundle: Path
    out: Path
    backend: str = "ort"
    precision: str = "fp32"
    calibration: Path | None = None
    int4_block: int = 32
    int4_accuracy_level: int = 4
    force: bool = False
    verify: bool = False

    def __post_init__(self) -> None:
        """Check the settings that need no files."""
        if self.backend not in BACKENDS:
            raise ConfigError(f"no back end {self.backend!r} here: expected one of {', '.join(BACKENDS)}")
        if self.precision not in PRECISIONS:
            raise ConfigError(f"no precision {self.precision!r}: expected one of {', '.join(PRECISIONS)}")
        if self.calibration is not None and not self.calibrated:
            raise ConfigError(f"--calibration serves int8 and int4: it means nothing in {self.precision}")
        if self.int4_block < 16 or self.int4_block & (self.int4_block - 1):
            raise ConfigError(f"an int4 block is a power of two of at least 16, found {self.int4_block}")
        if self.int4_accuracy_level not in (1, 4):
            raise ConfigError(f"the int4 accuracy level is 1 or 4, found {self.int4_accuracy_level}")

    @property
    def calibrated(self) -> bool:
        """Whether activations are measured before weights are rounded."""
        return self.precision != "fp32"

    def options(self) -> dict[str, Any]:
        """The settings that decide what an engine holds, without files' paths."""
        if self.precision == "int4":
            return {"block": self.int4_block, "accuracy_level": self.int4_accuracy_level}
        return {}
