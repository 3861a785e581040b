"""Medusa-2: heads and base trained together, so that the base's states suit the heads.

Cai et al. 2024, arXiv 2401.10774, section 2.2.2.
"""

import importlib.util
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from spec_trt.errors import ConfigError
from spec_trt.export.quiet import quiet
from spec_trt.heads.medusa import MedusaHeads
from spec_trt.heads.medusa_checkpoint import medusa_model_tensors
from spec_trt.training.base import FrozenBase, shift_left
from spec_trt.training.config import JointSettings, MedusaSettings
from spec_trt.training.draft_targets import Accuracy, join, rank_hits
from spec_trt.training.head_module import HeadModule
from spec_trt.training.medusa import MedusaTraining

__all__ = ["JointTraining", "add_lora", "check_lora", "save_joint"]

_HEADS_SHARD = "medusa_heads.safetensors"


class JointTraining(HeadModule):
    """A base that is trained, its heads, and both losses.

    Args:
        model: The base, in fp32; a `PeftModel` where only LoRA's weights are trained.
        heads: Over the base's own lm_head.
        draft_ids: The target's id of each row of the heads' projection; None for all.
        settings: Of the heads.
        joint: Of the base.
        bf16: Whether matrix products are computed in bf16.
    """

    _keys_to_ignore_on_save = None  # transformers' trainer asks for it when a checkpoint lacks what is not trained

    def __init__(
        self,
        model: PreTrainedModel,
        heads: MedusaHeads,
        draft_ids: Sequence[int] | None,
        settings: MedusaSettings,
        joint: JointSettings,
        bf16: bool,
    ) -> None:
        super().__init__()
        self.model = model
        self.medusa = MedusaTraining(heads, FrozenBase(model), draft_ids, settings, bf16)
        self.labels = ["base", *self.medusa.labels]
        self.warming = False
        self._draft_ids = None if draft_ids is None else torch.tensor(draft_ids)
        self.joint = joint
        self._bf16 = bf16

    def state_dict(self, *_: Any, **__: Any) -> dict[str, Tensor]:  # type: ignore[override]  # noqa: ANN401
        """What is trained, tied weights once: a frozen base is not kept in checkpoints."""
        return {name: weight.detach() for name, weight in self.named_parameters() if weight.requires_grad}

    def base_parameters(self) -> Iterator[nn.Parameter]:
        """Those that have the base's learning rate."""
        return (weight for weight in self.model.parameters() if weight.requires_grad)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, loss_mask: Tensor, index: Tensor) -> dict[str, Tensor]:  # noqa: ARG002
        """The base's loss plus the heads', weighted; the heads' alone while they warm up."""
        self.follow_base()
        with self._autocast(input_ids), torch.set_grad_enabled(not self.warming):
            states = self._states(input_ids)
            base_loss = None if self.warming else self._base_loss(states, input_ids, loss_mask)
        with self._autocast(input_ids):  # another one: casts made without gradients must not be used again
            loss = self.joint.heads_weight * self.medusa.loss(states, input_ids, loss_mask)
        return {"loss": loss if base_loss is None else loss + base_loss}

    def follow_base(self) -> None:
        """The heads' projection is the base's lm_head as it is now."""
        lm_head, projection = self.model.get_output_embeddings(), self.medusa.projection
        chosen = slice(None) if self._draft_ids is None else self._draft_ids.to(lm_head.weight.device)
        projection.weight = lm_head.weight.detach()[chosen]
        if projection.bias is not None:
            projection.bias = lm_head.bias.detach()[chosen]

    def _autocast(self, input_ids: Tensor) -> torch.autocast:
        return torch.autocast(input_ids.device.type, torch.bfloat16, enabled=self._bf16)

    @torch.no_grad()
    def measure(self, input_ids: Tensor, attention_mask: Tensor, loss_mask: Tensor, index: Tensor) -> Accuracy:  # noqa: ARG002
        """Compare the base's best tokens with the text's, and the heads'."""
        self.follow_base()
        with self._autocast(input_ids):
            states = self._states(input_ids)
            heads = self.medusa.accuracies(states, input_ids, loss_mask)
            logits, wanted = self._base_rows(states, input_ids, loss_mask)
        loss = nn.functional.cross_entropy(logits.float(), wanted, reduction="sum")
        rows = torch.tensor(len(wanted), device=loss.device)
        return join([Accuracy(hits=rank_hits(logits, wanted).sum(0), rows=rows, loss=loss), *heads])

    def _states(self, input_ids: Tensor) -> Tensor:
        output = self.model.base_model(input_ids, use_cache=False, return_dict=True)
        return cast(Tensor, output.last_hidden_state)

    def _base_loss(self, states: Tensor, input_ids: Tensor, loss_mask: Tensor) -> Tensor:
        logits, wanted = self._base_rows(states, input_ids, loss_mask)
        return nn.functional.cross_entropy(logits.float(), wanted)

    def _base_rows(self, states: Tensor, input_ids: Tensor, loss_mask: Tensor) -> tuple[Tensor, Tensor]:
        """The base's logits [rows, vocab] where the next token carries loss, and those tokens [rows]."""
        rows = shift_left(loss_mask, 1)
        logits = self.medusa.projection.finish(self.model.get_output_embeddings()(states[rows]))
        return logits, shift_left(input_ids, 1)[rows]


def check_lora() -> None:
    """Make sure that LoRA can be used.

    Raises:
        ConfigError: peft is not installed.
    """
    if importlib.util.find_spec("peft") is None:
        raise ConfigError("--lora needs peft: pip install 'spec-trt[train]', or train in full without --lora")


def add_lora(model: PreTrainedModel, rank: int) -> Any:  # noqa: ANN401 - peft is optional, and so are its types
    """Give every linear layer but the lm_head low-rank weights, which alone are trained.

    Hu et al. 2021, arXiv 2106.09685.

    Returns:
        The `PeftModel`, whose `get_base_model()` is `model` and whose `merge_and_unload()` ends LoRA.

    Raises:
        ConfigError: peft is not installed.
    """
    check_lora()
    from peft import LoraConfig, get_peft_model

    with quiet():
        return get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear"))


def save_joint(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    heads: MedusaHeads,
    directory: Path,
    *,
    draft_ids: Sequence[int] | None,
    standalone: bool,
    tree: list[list[int]] | None,
    card: dict[str, Any],
) -> None:
    """Write base and heads as one Hugging Face directory: the heads' keys stand in its shards (Medusa-2).

    Args:
        model: The changed base.
        tokenizer: Its tokenizer.
        heads: Trained with it.
        directory: An existing one.
        draft_ids: The target's id of each row of the heads' projection; None for all.
        standalone: Whether every head gets a projection too, as other engines load them.
        tree: The static tree to name.
        card: How both were trained.

    Raises:
        ConfigError: `standalone`, and other engines know no such heads.
    """
    with quiet():
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
    _add_tensors(directory, medusa_model_tensors(heads, draft_ids, model.dtype, standalone=standalone))
    file = directory / "config.json"
    config = json.loads(file.read_text(encoding="utf-8")) | {
        "medusa_num_heads": heads.config.heads,
        "medusa_num_layers": heads.config.layers,
        "spec_trt_training": card,
    }
    if tree is not None:
        config["tree"] = tree
    if draft_ids is not None:
        config["draft_vocab_size"] = len(draft_ids)
    file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _add_tensors(directory: Path, tensors: dict[str, Tensor]) -> None:
    """Put further tensors into a model's only file, or beside its shards and into their index."""
    index_file, single = directory / "model.safetensors.index.json", directory / "model.safetensors"
    if not index_file.is_file():
        save_file(load_file(single) | tensors, single, metadata={"format": "pt"})
        return
    save_file(tensors, directory / _HEADS_SHARD, metadata={"format": "pt"})
    index = json.loads(index_file.read_text(encoding="utf-8"))
    index["weight_map"] |= dict.fromkeys(tensors, _HEADS_SHARD)
    index_file.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
