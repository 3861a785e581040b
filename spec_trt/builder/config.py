"""What to build, and how."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal, get_args

from spec_trt.errors import ConfigError

__all__ = [
    "ATTENTIONS",
    "BACKENDS",
    "HEAD_PRECISIONS",
    "PRECISIONS",
    "BuildConfig",
    "Precision",
    "TensorRtOptions",
    "option_name",
]

Precision = Literal["fp32", "int8", "int4"]
Attention = Literal["plugin", "native"]

PRECISIONS: tuple[str, ...] = get_args(Precision)
HEAD_PRECISIONS: tuple[str, ...] = ("int8", "fp32")
ATTENTIONS: tuple[str, ...] = get_args(Attention)
BACKENDS = ("ort", "trt", "trt-rtx")

_TENSORRT = ("trt", "trt-rtx")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRtOptions:
    """What only the TensorRT back ends take; None leaves the choice to the builder.

    Attributes:
        compute_capabilities: The GPUs to build for, as `8.9`; the GPU at hand when None. TensorRT for RTX alone.
        attention: `plugin`, the TreeAttention plugin, or `native`, the library's own attention.
        max_batch: Sequences of a pass at the most.
        max_nodes: Nodes of a pass over a tree, or over a level of a draft, at the most.
        opt_batch: Sequences that a pass over a tree is tuned for.
        opt_nodes: Nodes that such a pass is tuned for.
        prefill_chunk: Nodes of a prefill pass at the most.
        max_length: Tokens of a sequence at the most, prompt included: the fixed size of its cache.
        workspace_bytes: GPU memory that a layer's kernel may take for itself, in bytes.
        timing_cache: A file to read kernel timings from and add them to. TensorRT alone.
    """

    compute_capabilities: Sequence[str] | None = None
    attention: str | None = None
    max_batch: int | None = None
    max_nodes: int | None = None
    opt_batch: int | None = None
    opt_nodes: int | None = None
    prefill_chunk: int | None = None
    max_length: int | None = None
    workspace_bytes: int | None = None
    timing_cache: Path | None = None

    def __post_init__(self) -> None:
        """Check what needs no files and no library."""
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, int) and value < 1:
                raise ConfigError(f"{option_name(item.name)} must be at least 1, found {value}")
        if self.attention is not None and self.attention not in ATTENTIONS:
            raise ConfigError(f"no attention {self.attention!r}: expected one of {', '.join(ATTENTIONS)}")
        for capability in self.compute_capabilities or ():
            if not re.fullmatch(r"\d+\.\d", capability):
                raise ConfigError(f"a compute capability is a number like 8.9, found {capability!r}")

    def given(self) -> list[str]:
        """The options that were set."""
        return [item.name for item in fields(self) if getattr(self, item.name) is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildConfig:
    """A build.

    Attributes:
        bundle: The bundle directory.
        out: The engine directory to make.
        backend: What will run the engine: `ort`, `trt` or `trt-rtx`.
        precision: Of ONNX Runtime's engines: `fp32`, the default; `int8`, weights per output channel and activations
            per row; or `int4`, weights in blocks. A TensorRT engine computes in the bundle's own types.
        head_precision: Of the draft heads in ONNX Runtime's engines: `int8`, the default, or `fp32`. It decides how
            many of their tokens are accepted, never what is generated.
        calibration: The text to measure activations on, for int8 and int4; a built-in one when None.
        tensorrt: What only the TensorRT back ends take.
        force: Whether an engine of other settings in `out` may be replaced.
        verify: Whether to check the hashes of the bundle's files too, not only their sizes.
    """

    bundle: Path
    out: Path
    backend: str = "ort"
    precision: str | None = None
    head_precision: str | None = None
    calibration: Path | None = None
    tensorrt: TensorRtOptions = field(default_factory=TensorRtOptions)
    force: bool = False
    verify: bool = False

    def __post_init__(self) -> None:
        """Check the settings that need no files."""
        if self.backend not in BACKENDS:
            raise ConfigError(f"no back end {self.backend!r} here: expected one of {', '.join(BACKENDS)}")
        self._refuse_foreign_options()
        if self.precision is not None and self.precision not in PRECISIONS:
            raise ConfigError(f"no precision {self.precision!r}: expected one of {', '.join(PRECISIONS)}")
        if self.head_precision is not None and self.head_precision not in HEAD_PRECISIONS:
            raise ConfigError(
                f"no precision {self.head_precision!r} of heads: expected one of {', '.join(HEAD_PRECISIONS)}"
            )
        if self.calibration is not None and not self.calibrated:
            raise ConfigError("--calibration serves int8 and int4: it means nothing in fp32")

    def _refuse_foreign_options(self) -> None:
        own = [name for name in ("precision", "head_precision", "calibration") if getattr(self, name) is not None]
        for name in (*own, *self.tensorrt.given()):
            owners = _OWNERS.get(name, _TENSORRT)
            if self.backend not in owners:
                reason = _REASONS.get((name, self.backend), "it means nothing here")
                raise ConfigError(
                    f"{option_name(name)} belongs to --backend {' and '.join(owners)}, found {self.backend}: {reason}"
                )

    @property
    def calibrated(self) -> bool:
        """Whether activations are measured before weights are rounded."""
        return self.precision not in (None, "fp32")


_OWNERS = {
    "precision": ("ort",),
    "head_precision": ("ort",),
    "calibration": ("ort",),
    "compute_capabilities": ("trt-rtx",),
    "timing_cache": ("trt",),
}
_TYPES = "the engine's types are the bundle's own (`spec-trt export --dtype`)"
_REASONS = {
    ("precision", "trt"): _TYPES,
    ("precision", "trt-rtx"): _TYPES,
    ("head_precision", "trt"): _TYPES,
    ("head_precision", "trt-rtx"): _TYPES,
    ("compute_capabilities", "trt"): "TensorRT builds for the GPU that it finds",
    ("timing_cache", "trt-rtx"): "TensorRT for RTX times nothing when it builds",
}


def option_name(attribute: str) -> str:
    """An attribute as the command line has it."""
    return "--compute-capability" if attribute == "compute_capabilities" else "--" + attribute.replace("_", "-")
