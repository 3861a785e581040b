"""What to build, and how."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

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
        force: Whether an engine of other settings in `out` may be replaced.
        verify: Whether to check the hashes of the bundle's files too, not only their sizes.
    """

    bundle: Path
    out: Path
    backend: str = "ort"
    precision: str = "fp32"
    calibration: Path | None = None
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

    @property
    def calibrated(self) -> bool:
        """Whether activations are measured before weights are rounded."""
        return self.precision != "fp32"
