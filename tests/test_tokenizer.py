import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from spec_trt.tokenizer import Tokenizer, load_tokenizer
from tests.runtime.fake_engine import save_byte_tokenizer
from tests.tokenizers import save_tokenizer


def test_decoding_is_transformers_own(tmp_path):
    for name, save in (("letters", save_tokenizer), ("bytes", save_byte_tokenizer)):
        save(tmp_path / name)
        tokenizer, plain = Tokenizer(tmp_path / name), AutoTokenizer.from_pretrained(tmp_path / name)
        every = list(range(len(plain)))
        expected = plain.decode(every, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert tokenizer.decode(every) == expected
        assert tokenizer.decode(plain.all_special_ids) == ""


BYTES = "caf\u00e9 \u65e5\u672c \U0001f600 x\ufffd"


@given(cuts=st.lists(st.integers(0, len(BYTES.encode())), min_size=2, max_size=2))
def test_parts_of_characters_are_decoded_as_the_library_does(byte_tokenizer, cuts):
    tokenizer, plain = byte_tokenizer
    assert type(plain.backend_tokenizer.decoder).__name__ == "ByteLevel"
    start, end = sorted(cuts)
    ids = plain(BYTES, add_special_tokens=False)["input_ids"][start:end]
    assert tokenizer.decode(ids) == plain.decode(ids, clean_up_tokenization_spaces=False)


@pytest.fixture(scope="module")
def byte_tokenizer(tmp_path_factory):
    directory = tmp_path_factory.mktemp("bytes")
    save_byte_tokenizer(directory)
    return Tokenizer(directory), AutoTokenizer.from_pretrained(directory)


def test_a_directory_without_one(tmp_path):
    assert load_tokenizer(tmp_path) is None
