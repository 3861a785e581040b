"""A smaller vocabulary for draft heads: the ids that a text uses most. The projection is a draft's main cost."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from spec_trt.errors import ConfigError

__all__ = ["DraftVocabulary", "coverage", "most_frequent_ids"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftVocabulary:
    """Ids that a head may draft.

    Attributes:
        ids: Of the target, ascending.
        coverage: The share of the counted tokens that are among them.
    """

    ids: list[int]
    coverage: float


def most_frequent_ids(
    counts: Mapping[int, int], size: int, *, vocab: int, always: Collection[int] = ()
) -> DraftVocabulary:
    """Take the most frequent ids; of equally frequent ones the lower.

    Args:
        counts: How often each id occurs.
        size: How many ids to take.
        vocab: Size of the target's vocabulary.
        always: Ids to take whatever their frequency: those that end a text.

    Raises:
        ConfigError: `size` leaves nothing out, or no room beside `always`.
    """
    if size >= vocab:
        raise ConfigError(f"--draft-vocab {size} reduces nothing: the model's vocabulary has {vocab} ids; choose fewer")
    if size <= len(set(always)):
        raise ConfigError(
            f"--draft-vocab {size} holds nothing beside the {len(set(always))} ids that end a text: choose more"
        )
    ranked = sorted(range(vocab), key=lambda token: (token not in always, -counts.get(token, 0), token))
    ids = sorted(ranked[:size])
    return DraftVocabulary(ids=ids, coverage=coverage(counts, ids))


def coverage(counts: Mapping[int, int], ids: Iterable[int]) -> float:
    """The share of the counted tokens that are among some ids."""
    return sum(counts.get(token, 0) for token in ids) / max(1, sum(counts.values()))
