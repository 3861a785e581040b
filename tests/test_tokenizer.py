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


def test_a_directory_without_one(tmp_path):
    assert load_tokenizer(tmp_path) is None
