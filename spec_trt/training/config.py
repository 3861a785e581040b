"""What `spec-trt train` is asked to do."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from spec_trt.errors import ConfigError

__all__ = ["PRECISIONS", "EagleSettings", "HeadSettings", "JointSettings", "MedusaSettings", "Precision", "TrainConfig"]

Precision = Literal["auto", "fp32", "bf16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


@dataclass(frozen=True, slots=True, kw_only=True)
class JointSettings:
    """How the base is trained with its heads (Medusa-2).

    Attributes:
        base_learning_rate: Its peak, smaller than the heads'.
        heads_warmup: Share of the steps in which only the heads are trained.
        heads_weight: Of the heads' loss beside the base's.
        lora: Rank of the base's low-rank weights; None trains all of its weights.
    """

    base_learning_rate: float = 1e-4
    heads_warmup: float = 0.3
    heads_weight: float = 0.2
    lora: int | None = None

    def __post_init__(self) -> None:
        _require_positive(self, "base_learning_rate", "heads_weight")
        if not 0 <= self.heads_warmup < 1:
            raise ConfigError(f"heads_warmup is a share in [0, 1), found {self.heads_warmup}")
        if self.lora is not None:
            _require_positive(self, "lora")


@dataclass(frozen=True, slots=True, kw_only=True)
class MedusaSettings:
    """Medusa heads and their loss.

    Attributes:
        heads: How many tokens ahead are drafted.
        layers: Residual blocks per head.
        decay: Head h's loss weighs decay^h.
        joint: How the base is trained too; None leaves it as it is.
    """

    heads: int = 4
    layers: int = 1
    decay: float = 0.8
    joint: JointSettings | None = None

    def __post_init__(self) -> None:
        _require_positive(self, "heads", "layers", "decay")


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleSettings:
    """An EAGLE draft layer and its loss.

    Attributes:
        version: 1 (feature regression) or 3 (fused features, no regression).
        unroll: Steps of the training-time test; 1 trains on the target's features alone.
        decay: Step i's loss weighs decay^i.
        feature_weight: Version 1: weight of the regression.
        token_weight: Of the cross-entropy.
        noise: Version 1: the noise on the features is uniform within plus and minus half of this.
    """

    version: Literal[1, 3] = 1
    unroll: int = 3
    decay: float = 0.8
    feature_weight: float = 1.0
    token_weight: float = 0.1
    noise: float = 0.2

    def __post_init__(self) -> None:
        _require_positive(self, "unroll", "decay", "token_weight")
        for name in ("feature_weight", "noise"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must be at least 0, found {getattr(self, name)}")


HeadSettings = MedusaSettings | EagleSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """One training.

    Attributes:
        model: The base: a Hugging Face directory, a hub id or a `.gguf` file.
        out: The checkpoint directory to make.
        data: Files of conversations or texts.
        self_distill: How many conversations the base writes itself to be trained on, beside `data`.
        text_tasks: Share of those that ask about texts which it wrote before.
        save_data: File that keeps those; one that is there already is added to. None keeps none.
        head: What to train.
        start_from: Checkpoint of a head to go on training; a new one when None.
        max_length: Tokens kept of one line.
        held_out: Share of the lines that accuracy is measured on, never trained on.
        draft_vocab: Ids that the head can draft; None for all.
        draft_vocab_data: What to count ids in; None for `data`.
        batch_size: Sequences per step.
        learning_rate: Its peak.
        epochs: Passes over the data.
        max_steps: Optimizer steps; None for as many as `epochs` needs.
        warmup: Share of the steps in which the learning rate rises.
        schedule: Of the learning rate behind its peak.
        clip: Largest norm of the gradients.
        seed: Of everything that is drawn.
        precision: Of the base's weights and of matrix products; auto: bf16 where the processor computes in it.
        threads: Of PyTorch on a CPU; None for its own choice.
        evaluate_every: Steps between two measurements of held-out accuracy.
        checkpoint_every: Steps between two checkpoints.
        feature_cache: Directory that keeps the base's outputs, for further epochs and trainings; None for none.
        tree_nodes: Nodes of the static tree that is chosen by the accuracy of each rank, and kept with the head.
        standalone: Whether the checkpoint gets the embeddings and lm_head that other engines load.
    """

    model: str
    out: Path
    head: HeadSettings
    data: tuple[Path, ...] = ()
    self_distill: int = 0
    text_tasks: float = 0.25
    save_data: Path | None = None
    start_from: Path | None = None
    max_length: int = 512
    held_out: float = 0.02
    draft_vocab: int | None = None
    draft_vocab_data: Path | None = None
    batch_size: int = 8
    learning_rate: float = 1e-3
    epochs: float = 1.0
    max_steps: int | None = None
    warmup: float = 0.03
    schedule: Literal["cosine", "linear", "constant_with_warmup"] = "cosine"
    clip: float = 0.5
    seed: int = 0
    precision: Precision = "auto"
    threads: int | None = None
    evaluate_every: int = 200
    checkpoint_every: int = 200
    feature_cache: Path | None = None
    tree_nodes: int = 12
    standalone: bool = False

    def __post_init__(self) -> None:
        _require_positive(self, "max_length", "batch_size", "learning_rate", "epochs", "clip")
        _require_positive(self, "evaluate_every", "checkpoint_every", "tree_nodes")
        if not 0 <= self.held_out < 1 or not 0 <= self.warmup < 1:
            raise ConfigError(f"held_out and warmup are shares in [0, 1), found {self.held_out} and {self.warmup}")
        if not 0 <= self.text_tasks <= 1:
            raise ConfigError(f"text_tasks is a share in [0, 1], found {self.text_tasks}")
        if not self.data and not self.self_distill:
            raise ConfigError("there is nothing to train on: give --data FILE.jsonl, --self-distill N, or both")
        if self.self_distill < 0:
            raise ConfigError(f"self_distill is a number of conversations, found {self.self_distill}")
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"seed must be from 0 to {2**32 - 1}, found {self.seed}")
        if self.draft_vocab_data is not None and self.draft_vocab is None:
            raise ConfigError("--draft-vocab-data is what the ids of --draft-vocab N are counted in: give both")
        if self.start_from is not None and self.draft_vocab is not None:
            raise ConfigError("--start-from brings the ids that its head drafts: leave out --draft-vocab")
        if self.save_data is not None and not self.self_distill:
            raise ConfigError("--save-data keeps what --self-distill N writes: give both")
        if isinstance(self.head, MedusaSettings) and self.head.joint is not None and self.feature_cache is not None:
            raise ConfigError("a joint training changes the base's outputs: leave out --feature-cache")
        for name in ("draft_vocab", "max_steps", "threads"):
            if getattr(self, name) is not None:
                _require_positive(self, name)
        if self.precision not in PRECISIONS:
            raise ConfigError(f"unknown precision {self.precision!r}: expected one of {', '.join(PRECISIONS)}")


def _require_positive(config: object, *names: str) -> None:
    for name in names:
        if not getattr(config, name) > 0:
            raise ConfigError(f"{name} must be positive, found {getattr(config, name)}")
