"""A smaller vocabulary for draft heads: the ids that a text uses most. The projection is a draft's main cost."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from spec_trt.errors import ConfigError
from spec_trt.texts import load_texts

__all__ = ["DraftVocabulary", "choose_vocabulary", "count_tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftVocabulary:
    """Ids that a head may draft.

    Attributes:
        ids: Of the target, ascending.
        coverage: The share of the counted tokens that are among them.
    """

    ids: list[int]
    coverage: float


def count_tokens(file: Path, tokenizer: PreTrainedTokenizerBase) -> Counter[int]:
    """How often each id occurs in a file of texts (see `spec_trt.texts`).

    Raises:
        DataError: The file can't be read or holds no text.
    """
    counts: Counter[int] = Counter()
    for text in load_texts(file):
        counts.update(tokenizer(text, add_special_tokens=False)["input_ids"])
    return counts


def choose_vocabulary(
    counts: Mapping[int, int], size: int, *, vocab: int, always: Collection[int] = ()
) -> DraftVocabulary:
    """Take the most frequent ids; of equally frequent ones the lower.

    Args:
        counts: How often each id occurs.
        size: How many ids to take.
        vocab: Size of the target's vocabulary.
        always: Ids to take whatever their frequency: those that end a text.

    Raises:
        ConfigError: `size` leaves nothing out.
    """
    if size >= vocab:
        raise ConfigError(f"--draft-vocab {size} reduces nothing: the model's vocabulary has {vocab} ids; choose fewer")
    ranked = sorted(range(vocab), key=lambda token: (token not in always, -counts.get(token, 0), token))
    ids = sorted(ranked[:size])
    return DraftVocabulary(ids=ids, coverage=sum(counts.get(token, 0) for token in ids) / max(1, sum(counts.values())))
