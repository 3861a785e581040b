"""Which ids a head with a reduced vocabulary can draft: the most frequent ones of a text."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spec_trt.errors import ConfigError
from spec_trt.training.conversations import TokenSequence

__all__ = ["DraftVocab", "choose_draft_vocab"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftVocab:
    """A reduced vocabulary.

    Attributes:
        ids: Of the target, ascending.
        coverage: Share of the counted tokens that are among them.
    """

    ids: list[int]
    coverage: float


def choose_draft_vocab(sequences: Iterable[TokenSequence], size: int, *, eos_ids: Sequence[int]) -> DraftVocab:
    """Take the most frequent ids of the answers, and those that end a text whatever their frequency.

    Equally frequent ids are taken in ascending order; where fewer are seen, the vocabulary is smaller.

    Raises:
        ConfigError: `size` leaves no room beside the ids that end a text.
    """
    counts = Counter(
        token
        for sequence in sequences
        for token, loss in zip(sequence.input_ids, sequence.loss_mask, strict=True)
        if loss
    )
    if size <= len(set(eos_ids)):
        raise ConfigError(
            f"a draft vocabulary of {size} holds nothing beside the {len(set(eos_ids))} ids that end a text"
        )
    frequent = sorted(set(counts) - set(eos_ids), key=lambda token: (-counts[token], token))
    ids = sorted([*set(eos_ids), *frequent][:size])
    return DraftVocab(ids=ids, coverage=sum(counts[token] for token in ids) / max(1, counts.total()))
