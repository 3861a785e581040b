"""Counting a text's ids."""

from collections import Counter
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from spec_trt.errors import DataError
from spec_trt.export.token_counts import count_tokens
from tests.tokenizers import save_tokenizer


def test_tokens_of_all_texts_are_counted(tmp_path: Path):
    tokenizer = AutoTokenizer.from_pretrained(save_tokenizer(tmp_path))
    (tmp_path / "texts.jsonl").write_text('{"prompt": "aab", "response": "c"}\n{"text": "ba"}\n')
    counts = count_tokens(tmp_path / "texts.jsonl", tokenizer)
    a, b, c = (tokenizer.convert_tokens_to_ids(letter) for letter in "abc")
    assert {token: counts[token] for token in (a, b, c)} == {a: 3, b: 2, c: 1}
    assert isinstance(counts, Counter)

    (tmp_path / "texts.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match="has no text"):
        count_tokens(tmp_path / "texts.jsonl", tokenizer)
