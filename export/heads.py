"""Draft heads to export: loaded for a target, and their vocabulary reduced where asked."""

import dataclasses
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import nn

from spec_trt.errors import ConfigError, ModelError
from spec_trt.export.base_graph import BaseGraph
from spec_trt.export.config import ExportConfig
from spec_trt.export.load import LoadedModel
from spec_trt.export.token_counts import count_tokens
from spec_trt.export.torch_reference import reference
from spec_trt.export.trees import PassShape, draw_pass
from spec_trt.heads.eagle_checkpoint import LoadedEagle, load_eagle
from spec_trt.heads.frequent_ids import DraftVocabulary, most_frequent_ids
from spec_trt.heads.medusa_checkpoint import LoadedMedusa, load_medusa
from spec_trt.heads.projection import Projection, check_projection, target_projection
from spec_trt.heads.target import head_target

__all__ = ["LoadedHeads", "load_heads", "require_files"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedHeads:
    """The heads of one export.

    Attributes:
        medusa: Medusa heads, if there are any.
        eagle: An EAGLE draft model, if there is one.
        notes: What the user should know of them.
    """

    medusa: LoadedMedusa | None = None
    eagle: LoadedEagle | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def modules(self) -> list[nn.Module]:
        """Their modules."""
        medusa = [] if self.medusa is None else [self.medusa.heads]
        eagle = [] if self.eagle is None else [self.eagle.draft]
        return [*medusa, *eagle]

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """The target's layers whose inputs an EAGLE-3 draft reads; none for other heads."""
        return () if self.eagle is None else self.eagle.draft.config.feature_layers


def require_files(config: ExportConfig) -> None:
    """Look for what the heads are made from, before a model is loaded for minutes.

    Raises:
        ConfigError: A file or directory does not exist.
    """
    asked = {"--medusa": config.medusa, "--eagle": config.eagle, "--draft-vocab-data": config.draft_vocab_data}
    for option, path in asked.items():
        if path is not None and not path.exists():
            raise ConfigError(f"{path} does not exist: give {option} another path")


def load_heads(config: ExportConfig, loaded: LoadedModel) -> LoadedHeads:
    """Load what is asked for, and Medusa heads that the model's own checkpoint holds.

    Args:
        config: The export.
        loaded: The target.

    Raises:
        ConfigError: A draft vocabulary is asked for that can't be made.
        ModelError: A checkpoint is absent, damaged or of another target, or the target's logits can't be followed.
        DataError: The draft vocabulary's text can't be read.
    """
    medusa_path = config.medusa or loaded.medusa
    if medusa_path is None and config.eagle is None:
        if config.draft_vocab is not None:
            raise ConfigError(
                "--draft-vocab reduces the vocabulary of heads, and there are none: add --medusa or --eagle"
            )
        return LoadedHeads()
    _check_logits(loaded)
    target = head_target(loaded.model)
    medusa = None if medusa_path is None else load_medusa(medusa_path, target)
    eagle = None if config.eagle is None else load_eagle(config.eagle, target)
    if eagle is not None:
        _check_features(eagle, loaded)
    notes = [f"{head.source}: {note}" for head in (medusa, eagle) if head is not None for note in head.notes]
    heads = LoadedHeads(medusa=medusa, eagle=eagle, notes=notes)
    return heads if config.draft_vocab is None else _reduce(heads, config, loaded)


def _check_logits(loaded: LoadedModel) -> None:
    """Run a few tokens: heads must be able to do what the target does behind its last hidden state."""
    model, architecture = loaded.model, loaded.architecture
    inputs = draw_pass(PassShape(past_lens=(0,), past=0, nodes=4, rows=0, chain=True), architecture, seed=0)
    past = [buffer.to(model.dtype) for buffer in inputs.past]
    graph = BaseGraph(model, reference, windowed=architecture.windowed).eval()
    with torch.no_grad():
        logits, _, hidden_states, *_ = graph(*inputs.tensors()[:4], torch.arange(4)[None], past)
    check_projection(target_projection(model), hidden_states, logits)


def _check_features(eagle: LoadedEagle, loaded: LoadedModel) -> None:
    config, hidden = eagle.draft.config, loaded.model.config.hidden_size
    if config.version == 3 and config.target_hidden != hidden:
        raise ModelError(
            f"{eagle.source} reads features of size {config.target_hidden}, the model's are of size {hidden}: "
            "it was made for another model"
        )


def _reduce(heads: LoadedHeads, config: ExportConfig, loaded: LoadedModel) -> LoadedHeads:
    """Reduce the vocabulary of the heads that have no reduced one of their own."""
    found = [head for head in (heads.medusa, heads.eagle) if head is not None]
    if all(head.draft_ids is not None for head in found):
        own = " and ".join(f"{head.source} has {len(head.draft_ids or [])} ids" for head in found)
        raise ConfigError(f"--draft-vocab needs heads with the whole vocabulary, but {own} of its own: leave it out")
    chosen = _vocabulary(config, loaded)
    note = (
        f"draft vocabulary: {len(chosen.ids):,} of {loaded.architecture.vocab:,} ids "
        f"cover {chosen.coverage:.2%} of the tokens in {config.draft_vocab_data}"
    )
    medusa, eagle = heads.medusa, heads.eagle
    return LoadedHeads(
        medusa=medusa if medusa is None or medusa.draft_ids else _narrow_medusa(medusa, chosen.ids),
        eagle=eagle if eagle is None or eagle.draft_ids else _narrow_eagle(eagle, chosen.ids),
        notes=[*heads.notes, note],
    )


def _vocabulary(config: ExportConfig, loaded: LoadedModel) -> DraftVocabulary:
    assert config.draft_vocab is not None  # both are given, or none: see ExportConfig
    assert config.draft_vocab_data is not None
    if loaded.tokenizer is None:
        raise ConfigError("--draft-vocab counts tokens of a text, but the model has no tokenizer files: leave it out")
    counts = count_tokens(config.draft_vocab_data, loaded.tokenizer)
    return most_frequent_ids(
        counts, config.draft_vocab, vocab=loaded.architecture.vocab, always=frozenset(loaded.eos_ids)
    )


def _narrow_medusa(medusa: LoadedMedusa, ids: list[int]) -> LoadedMedusa:
    heads = medusa.heads
    heads.projections = nn.ModuleList(cast(Projection, projection).narrowed(ids) for projection in heads.projections)
    heads.config = dataclasses.replace(heads.config, draft_vocab=len(ids))
    return dataclasses.replace(medusa, draft_ids=ids)


def _narrow_eagle(eagle: LoadedEagle, ids: list[int]) -> LoadedEagle:
    draft = eagle.draft
    draft.projection = draft.projection.narrowed(ids)
    draft.config = dataclasses.replace(draft.config, draft_vocab=len(ids))
    return dataclasses.replace(eagle, draft_ids=ids)
