"""EAGLE's loss: regression on features and the target's distribution, unrolled on the draft's own outputs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from spec_trt.errors import ModelError
from spec_trt.heads.eagle import DraftLayer, EagleConfig, EagleDraft, FusedDraftLayer
from spec_trt.heads.eagle_settings import default_feature_layers
from spec_trt.heads.target import HeadTarget
from spec_trt.training.base import BaseOutput, FrozenBase, shift_left
from spec_trt.training.config import EagleSettings
from spec_trt.training.draft_targets import Accuracy, DraftIndex, join, rank_hits
from spec_trt.training.head_module import HeadModule
from spec_trt.training.row_loss import chunked, cross_entropy_sum
from spec_trt.training.unroll_attention import UnrollAttention

__all__ = ["EagleTraining", "new_eagle"]


def new_eagle(target: HeadTarget, config: Any, draft_ids: Sequence[int] | None, version: int) -> EagleDraft:  # noqa: ANN401
    """A draft shaped like one of the target's own layers, that starts by passing features through.

    Args:
        target: The model to draft for.
        config: Its transformers configuration.
        draft_ids: The target's id of each row of the projection; None for all.
        version: 1 or 3.

    Raises:
        ModelError: EAGLE-3 can't read the target's layers: they are too few, or not as wide as what its lm_head reads.
    """
    width = getattr(config, "hidden_size", target.hidden)
    if version == 3 and width != target.hidden:
        raise ModelError(
            f"EAGLE-3 reads layers as wide as what the lm_head reads: the target's are {width} wide, its lm_head "
            f"reads {target.hidden}; train with --version 1, or Medusa heads"
        )
    projection = target.projection.shared() if draft_ids is None else target.projection.narrowed(draft_ids)
    heads = config.num_attention_heads
    draft = EagleDraft(
        EagleConfig(
            version=1 if version == 1 else 3,
            hidden=target.hidden,
            intermediate=getattr(config, "intermediate_size", None) or 4 * target.hidden,
            heads=heads,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or target.hidden // heads,
            target_hidden=target.hidden,
            draft_vocab=projection.weight.shape[0],
            rope_parameters=target.rope_parameters or {"rope_type": "default", "rope_theta": 10000.0},
            max_positions=target.max_positions,
            feature_layers=() if version == 1 else default_feature_layers(target.layers),
        ),
        target.embedding,
        projection,
    )
    _pass_through(draft)
    return draft


@torch.no_grad()
def _pass_through(draft: EagleDraft) -> None:
    """Start near the identity on the (last) feature: what the layer adds starts small."""
    for layer in cast(Iterable[DraftLayer | FusedDraftLayer], draft.layers):
        layer.self_attn.o_proj.weight.mul_(0.1)
        layer.mlp.down_proj.weight.mul_(0.1)
    draft.fc.weight.mul_(0.1)
    hidden = draft.config.hidden
    if draft.config.target_hidden == hidden:
        draft.fc.weight[:, -hidden:] += torch.eye(hidden)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Targets:
    """What the draft is compared with.

    Attributes:
        slots: [batch, nodes]: for a position whose next token carries loss its row below, else -1.
        wanted: [batch, nodes]: there the draft's row of the target's most likely token, -1 where it has none.
        distribution: [n, draft_vocab]: the target's, restricted to the draft vocabulary and renormalised.
    """

    slots: Tensor
    wanted: Tensor
    distribution: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One step of the unrolled draft.

    Attributes:
        to_project: [batch, nodes, hidden].
        next_features: [batch, nodes, hidden].
        slots: [batch, nodes]: the target's distribution that each row should have given, -1 for none.
        wanted: [batch, nodes]: the most likely token of each, -1 for none in the draft vocabulary.
        shift: How far ahead of a row's column the features lie that it should have given.
    """

    to_project: Tensor
    next_features: Tensor
    slots: Tensor
    wanted: Tensor
    shift: int


class EagleTraining(HeadModule):
    """A draft, its frozen base, and the loss (Li et al. 2024, arXiv 2401.15077; 2025, arXiv 2503.01840).

    Args:
        draft: To train.
        base: What it learns from; in no state dict.
        draft_ids: The target's id of each row of the draft; None for all.
        settings: Of the loss.
        bf16: Whether matrix products are computed in bf16.
    """

    def __init__(
        self, draft: EagleDraft, base: FrozenBase, draft_ids: Sequence[int] | None, settings: EagleSettings, bf16: bool
    ) -> None:
        super().__init__()
        self.draft = draft
        self.index_of = DraftIndex(draft_ids, base.projection.weight.shape[0])
        self.labels = [f"step {step}" for step in range(settings.unroll)]
        self._base = base
        self._settings = settings
        self._bf16 = bf16

    def forward(self, input_ids: Tensor, attention_mask: Tensor, loss_mask: Tensor, index: Tensor) -> dict[str, Tensor]:
        """The loss of a batch, right-padded: [batch, nodes] each, and the sequences' [batch] places."""
        base = self._base(input_ids, attention_mask, loss_mask, index)
        with torch.autocast(input_ids.device.type, torch.bfloat16, enabled=self._bf16):
            targets = self._targets(base, loss_mask)
            steps = enumerate(self._unroll(base, input_ids, targets))
            losses = [self._settings.decay**number * self._step_loss(step, base, targets) for number, step in steps]
        return {"loss": torch.stack(losses).sum()}

    @torch.no_grad()
    def measure(self, input_ids: Tensor, attention_mask: Tensor, loss_mask: Tensor, index: Tensor) -> Accuracy:
        """Compare the draft's best tokens with the target's, per unrolled step."""
        base = self._base(input_ids, attention_mask, loss_mask, index)
        with torch.autocast(input_ids.device.type, torch.bfloat16, enabled=self._bf16):
            targets = self._targets(base, loss_mask)
            return join([self._accuracy(step, targets) for step in self._unroll(base, input_ids, targets)])

    @torch.no_grad()
    def _targets(self, base: BaseOutput, loss_mask: Tensor) -> _Targets:
        known = shift_left(loss_mask, 1)
        slots = torch.full(known.shape, -1, device=known.device)
        slots[known] = torch.arange(int(known.sum()), device=known.device)
        distribution = chunked(
            lambda rows: self.draft.projection(rows).softmax(-1, dtype=torch.float32).to(torch.bfloat16),
            base.hidden_states[known],
        )
        wanted = self.index_of(base.argmax.masked_fill(~known, -1))
        return _Targets(slots=slots, wanted=wanted, distribution=distribution)

    def _unroll(self, base: BaseOutput, input_ids: Tensor, targets: _Targets) -> Iterator[_Step]:
        """Step 0 reads the target's features; each further one its own outputs, everything shifted by one."""
        attend = UnrollAttention()
        features = self._first_features(base)
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        for number in range(self._settings.unroll):
            shift = number + 1
            states = self.draft.run_layers(shift_left(input_ids, shift), features, positions + number, attend)
            to_project, features = self.draft.read_out(states)
            yield _Step(
                to_project=to_project,
                next_features=features,
                slots=shift_left(targets.slots, shift, fill=-1),
                wanted=shift_left(targets.wanted, shift, fill=-1),
                shift=shift,
            )

    def _first_features(self, base: BaseOutput) -> Tensor:
        if base.features is not None:
            return self.draft.fuse(base.features)
        features = base.hidden_states
        if self.training and self._settings.noise:
            features = features + (torch.rand_like(features) - 0.5) * self._settings.noise
        return features

    def _step_loss(self, step: _Step, base: BaseOutput, targets: _Targets) -> Tensor:
        inside = step.wanted >= 0
        pick = step.slots[inside]
        loss = cross_entropy_sum(step.to_project[inside], self.draft.projection, targets.distribution, pick)
        loss = self._settings.token_weight * loss / max(1, len(pick))
        if self.draft.config.version == 1 and self._settings.feature_weight:
            compared = step.slots >= 0
            true = shift_left(base.hidden_states, step.shift)[compared].float()
            regression = nn.functional.smooth_l1_loss(step.next_features[compared].float(), true, reduction="sum")
            loss = loss + self._settings.feature_weight * regression / max(1, true.numel())
        return loss

    def _accuracy(self, step: _Step, targets: _Targets) -> Accuracy:
        rows = step.slots >= 0
        pick, wanted = step.slots[rows], step.wanted[rows]
        logits_of = self.draft.projection
        places = torch.arange(len(pick), device=pick.device)
        states = step.to_project[rows]
        hits = chunked(lambda part: rank_hits(logits_of(states[part]), wanted[part]), places)
        inside = wanted >= 0
        loss = cross_entropy_sum(states[inside], self.draft.projection, targets.distribution, pick[inside])
        return Accuracy(hits=hits.sum(0), rows=rows.sum(), loss=loss)
