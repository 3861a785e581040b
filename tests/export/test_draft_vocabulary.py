"""Which ids a reduced vocabulary keeps."""

from collections import Counter
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from spec_trt.errors import ConfigError, DataError
from spec_trt.export.draft_vocabulary import choose_vocabulary, count_tokens
from tests.tokenizers import save_tokenizer


def test_the_most_frequent_ids_are_kept_in_ascending_order():
    chosen = choose_vocabulary({7: 5, 3: 9, 4: 1, 8: 5}, 3, vocab=20)
    assert chosen.ids == [3, 7, 8]
    assert chosen.coverage == pytest.approx(19 / 20)


def test_equally_frequent_ids_are_kept_from_below_and_ids_never_seen_fill_up():
    assert choose_vocabulary({9: 2, 8: 2, 5: 7}, 2, vocab=20).ids == [5, 8]
    assert choose_vocabulary({9: 2}, 4, vocab=20).ids == [0, 1, 2, 9]


def test_ids_that_end_a_text_are_always_kept():
    chosen = choose_vocabulary({7: 5, 3: 9}, 2, vocab=20, always={19})
    assert chosen.ids == [3, 19]
    assert chosen.coverage == pytest.approx(9 / 14)


def test_a_vocabulary_that_leaves_nothing_out_is_refused():
    with pytest.raises(ConfigError, match="--draft-vocab 20 reduces nothing: the model's vocabulary has 20 ids"):
        choose_vocabulary({}, 20, vocab=20)


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
