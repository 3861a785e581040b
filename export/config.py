"""What `spec-trt export` is asked to do."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from spec_trt.errors import ConfigError

__all__ = ["DTYPES", "STEPS", "Dtype", "ExportConfig"]

Dtype = Literal["fp32", "fp16", "bf16"]
STEPS = ("load", "trace", "heads", "check", "finish")
DTYPES: tuple[Dtype, ...] = get_args(Dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportConfig:
    """One export.

    Attributes:
        model: A local Hugging Face directory, a hub id, or a `.gguf` file.
        output: The bundle directory to make.
        dtype: Of weights, activations and cache.
        medusa: Medusa heads: a checkpoint's directory or file; None for those in the model's own checkpoint, if any.
        eagle: An EAGLE, EAGLE-2 or EAGLE-3 draft model: a checkpoint's directory or file; None for none.
        draft_vocab: Ids that heads keep of the target's vocabulary; None for what their checkpoint has.
        draft_vocab_data: A file of texts, whose most frequent ids are kept.
        features: Whether the base graph gives EAGLE-3's three features even without such a head.
        check: Whether to compare the graph with PyTorch before the bundle is kept.
        replace: Whether an existing `output` may be replaced.
    """

    model: str
    output: Path
    dtype: Dtype = "fp32"
    medusa: Path | None = None
    eagle: Path | None = None
    draft_vocab: int | None = None
    draft_vocab_data: Path | None = None
    features: bool = False
    check: bool = True
    replace: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError(f"unknown dtype {self.dtype!r}: expected one of {', '.join(DTYPES)}")
        if not self.model:
            raise ConfigError("no model given: expected a directory, a hub id or a .gguf file")
        if self.draft_vocab is not None and self.draft_vocab < 1:
            raise ConfigError(f"a draft vocabulary has at least one id, found --draft-vocab {self.draft_vocab}")
        if (self.draft_vocab is None) != (self.draft_vocab_data is None):
            raise ConfigError(
                "--draft-vocab N and --draft-vocab-data FILE go together: the N most frequent ids of FILE are kept"
            )
