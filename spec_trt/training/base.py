"""The frozen base model: what heads learn from."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from spec_trt.errors import ModelError
from spec_trt.export.load import load_model
from spec_trt.export.source import locate
from spec_trt.heads.projection import Projection, check_projection, target_projection
from spec_trt.training.config import Precision
from spec_trt.training.feature_store import FeatureStore
from spec_trt.training.fingerprint import fingerprint
from spec_trt.training.row_loss import chunked

__all__ = ["BaseOutput", "FrozenBase", "LoadedBase", "computes_bf16", "load_base", "shift_left"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedBase:
    """A base and its tokenizer.

    Attributes:
        model: Every weight frozen, ordinary attention.
        tokenizer: Its tokenizer.
        eos_ids: Ids that end a text.
        name: Its name, never a path of this machine.
        bf16: Whether its weights are in bf16.
        fingerprint: Tells it from every other base.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    eos_ids: list[int]
    name: str
    bf16: bool
    fingerprint: str

    @property
    def vocab(self) -> int:
        """Rows of its lm_head."""
        rows: int = self.model.get_output_embeddings().weight.shape[0]
        return rows


def load_base(model: str, precision: Precision) -> LoadedBase:
    """Load the base for training.

    Raises:
        ModelError: It can't be loaded, has no tokenizer, or makes its logits in a way that heads can't follow.
    """
    source = locate(model)
    bf16 = computes_bf16() if precision == "auto" else precision == "bf16"
    loaded = load_model(source, "bf16" if bf16 else "fp32")
    if loaded.tokenizer is None:
        raise ModelError(f"{source.name} has no tokenizer files: training needs the model's own tokenizer")
    loaded.model.set_attn_implementation("sdpa" if loaded.model._supports_sdpa else "eager")
    _check_states(loaded.model)
    return LoadedBase(
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        eos_ids=loaded.eos_ids,
        name=source.name,
        bf16=bf16,
        fingerprint=fingerprint(loaded.model),
    )


@torch.no_grad()
def _check_states(model: PreTrainedModel) -> None:
    """Make sure that the states which heads read are those that the base's lm_head reads."""
    projection = target_projection(model)
    ids = torch.arange(8)[None] % projection.weight.shape[0]
    states = model.base_model(ids, use_cache=False, return_dict=True).last_hidden_state
    check_projection(projection, states, model(ids, use_cache=False).logits)


def computes_bf16() -> bool:
    """Whether this machine multiplies matrices in bf16 faster than in fp32."""
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported())
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return "amx_bf16" in flags or "avx512_bf16" in flags


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseOutput:
    """What the base makes of a batch.

    Attributes:
        hidden_states: [batch, nodes, hidden], after the final norm.
        features: [batch, nodes, k * hidden]: the states entering `feature_layers`; None without any.
        argmax: [batch, nodes]: its most likely next token; -1 where the next token carries no loss.
    """

    hidden_states: Tensor
    features: Tensor | None
    argmax: Tensor


_ARGMAX, _HIDDEN_STATES = "argmax", "hidden_states"


def _feature(layer: int) -> str:
    """Names the states that enter a layer, in the store."""
    return f"feature.{layer}"


class FrozenBase:
    """Runs the base, or reads what an earlier pass over the same sequences gave.

    Args:
        model: The base.
        feature_layers: Layers whose inputs are wanted too (EAGLE-3).
        store: Keeps outputs by the sequences' index.
    """

    def __init__(
        self, model: PreTrainedModel, *, feature_layers: Sequence[int] = (), store: FeatureStore | None = None
    ) -> None:
        self.model = model
        self._feature_layers = tuple(feature_layers)
        self._names = [_ARGMAX, _HIDDEN_STATES, *map(_feature, self._feature_layers)]
        self._store = store

    @property
    def projection(self) -> Projection:
        """The base's own, of the device where the base is now: its weight is another tensor after a move."""
        return target_projection(self.model)

    def __call__(self, input_ids: Tensor, attention_mask: Tensor, loss_mask: Tensor, index: Tensor) -> BaseOutput:
        """Run a right-padded batch; causal attention needs no mask for padding behind the text.

        Args:
            input_ids: [batch, nodes].
            attention_mask: [batch, nodes] bool: false for padding.
            loss_mask: [batch, nodes] bool.
            index: [batch]: the sequences' place in the store.
        """
        outputs = None if self._store is None else self._store.get(index, input_ids.shape[1], self._names)
        if outputs is None:
            outputs = self._run(input_ids, loss_mask)
            if self._store is not None:
                self._store.put(index, attention_mask.sum(1).tolist(), outputs)
        dtype = self.model.dtype
        kept = torch.bfloat16 if self._store else dtype  # the first epoch rounds as those that read the store
        states = {name: outputs[name].to(kept).to(input_ids.device, dtype) for name in self._names[1:]}
        features = [states[_feature(layer)] for layer in self._feature_layers]
        return BaseOutput(
            hidden_states=states[_HIDDEN_STATES],
            features=torch.cat(features, dim=-1) if features else None,
            argmax=outputs[_ARGMAX].to(input_ids.device),
        )

    @torch.no_grad()
    def _run(self, input_ids: Tensor, loss_mask: Tensor) -> dict[str, Tensor]:
        self.model.to(input_ids.device)
        projection = self.projection
        output = self.model.base_model(
            input_ids, use_cache=False, output_hidden_states=bool(self._feature_layers), return_dict=True
        )
        states = output.last_hidden_state
        wanted = shift_left(loss_mask, 1)
        argmax = torch.full_like(input_ids, -1)
        argmax[wanted] = chunked(lambda rows: projection(rows).argmax(-1), states[wanted])
        features = {_feature(layer): output.hidden_states[layer] for layer in self._feature_layers}
        return {_ARGMAX: argmax, _HIDDEN_STATES: states, **features}


def shift_left(values: Tensor, count: int, fill: float = 0) -> Tensor:
    """Move columns to the left by `count`, and fill what is left on the right: [batch, nodes, ...]."""
    shifted = torch.full_like(values, fill)
    if count < values.shape[1]:
        shifted[:, : values.shape[1] - count] = values[:, count:]
    return shifted
