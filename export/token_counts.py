"""How often a tokenizer's ids occur in a file of texts."""

from collections import Counter
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from spec_trt.texts import load_texts

__all__ = ["count_tokens"]


def count_tokens(file: Path, tokenizer: PreTrainedTokenizerBase) -> Counter[int]:
    """Count the ids of all texts (see `spec_trt.texts`).

    Raises:
        DataError: The file can't be read or holds no text.
    """
    counts: Counter[int] = Counter()
    for text in load_texts(file):
        counts.update(tokenizer(text, add_special_tokens=False)["input_ids"])
    return counts
