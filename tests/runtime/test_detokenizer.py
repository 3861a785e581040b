from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, pre_tokenizers

from spec_trt.runtime.detokenizer import Detokenizer

Decode = Callable[[list[int]], str]


def byte_level(vocabulary: Sequence[bytes]) -> Decode:
    """Joins the tokens' bytes; what is no UTF-8 becomes U+FFFD."""
    return lambda ids: b"".join(vocabulary[token] for token in ids).decode("utf-8", errors="replace")


def sentence_piece(vocabulary: Sequence[str]) -> Decode:
    """Strips the leading space of a decode."""
    return lambda ids: "".join(vocabulary[token] for token in ids).removeprefix(" ")


def byte_fallback(ids: list[int]) -> str:
    """Ids below 256 are bytes, others characters; a run of bytes that is no UTF-8 is U+FFFD for each."""
    text, run = "", b""
    for token in [*ids, ord("\0") + 256]:
        if token < 256:
            run += bytes([token])
            continue
        try:
            text += run.decode()
        except UnicodeDecodeError:
            text += "\ufffd" * len(run)
        text, run = text + chr(token - 256), b""
    return text.removesuffix("\0").removeprefix(" ")


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    borders = [0, *sorted({cut % (len(data) + 1) for cut in cuts} - {0, len(data)}), len(data)]
    return [data[start:end] for start, end in pairwise(borders)]


def pieces_of(decode: Decode, blocks: list[list[int]]) -> list[str]:
    detokenizer = Detokenizer(decode)
    return [*(detokenizer.push(block) for block in blocks), detokenizer.flush()]


def in_blocks(ids: list[int], size: int) -> list[list[int]]:
    return [ids[start : start + size] for start in range(0, len(ids), size)]


@given(st.binary(max_size=80), st.lists(st.integers(0, 80), max_size=60), st.integers(1, 4))
def test_pieces_of_any_bytes_join_to_the_whole_decode(data: bytes, cuts: list[int], size: int):
    vocabulary = split(data, cuts)
    decode, ids = byte_level(vocabulary), list(range(len(vocabulary)))
    assert "".join(pieces_of(decode, in_blocks(ids, size))) == decode(ids)


@given(st.text(st.sampled_from("aé€😀 \ufffd"), max_size=40), st.integers(1, 4))
def test_single_bytes_never_give_half_a_character(text: str, size: int):
    decode, ids = byte_level([bytes([value]) for value in range(256)]), list(text.encode())
    pieces = pieces_of(decode, in_blocks(ids, size))
    assert "".join(pieces) == text


@given(st.text(st.sampled_from("aé€😀"), min_size=1, max_size=20))
def test_a_character_is_given_out_as_soon_as_it_is_complete(text: str):
    detokenizer, ids, given_out = Detokenizer(byte_level([bytes([n]) for n in range(256)])), text.encode(), ""
    for count, token in enumerate(ids, start=1):
        given_out += detokenizer.push([token])
        assert given_out == ids[:count].decode(errors="ignore")
        assert detokenizer.settled == len(given_out.encode())


@given(st.lists(st.sampled_from([" ", " a", "b", "", "  ", " é"]), max_size=60), st.integers(1, 4))
def test_a_stripped_leading_space_is_stripped_once(vocabulary: list[str], size: int):
    decode, ids = sentence_piece(vocabulary), list(range(len(vocabulary)))
    assert "".join(pieces_of(decode, in_blocks(ids, size))) == decode(ids)


@given(st.text(st.sampled_from(" aé€😀"), max_size=40), st.lists(st.booleans(), min_size=40, max_size=40))
def test_byte_fallback(text: str, as_bytes: list[bool]):
    ids: list[int] = []
    for character, split_up in zip(text, as_bytes, strict=False):
        ids += character.encode() if split_up else [ord(character) + 256]
    assert "".join(pieces_of(byte_fallback, [[token] for token in ids])) == byte_fallback(ids)


@given(st.binary(max_size=60), st.integers(1, 4))
def test_the_byte_level_decoder_of_tokenizers(data: bytes, size: int):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    decoder = decoders.ByteLevel()

    def decode(ids: list[int]) -> str:
        return str(decoder.decode([alphabet[token] for token in ids]))

    ids = list(data)
    assert "".join(pieces_of(decode, in_blocks(ids, size))) == decode(ids)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("vocabulary", [["\ufffd".encode()], [b"\xff"], [b"\xef", b"\xbf", b"\xbd"]])
def test_real_replacement_characters_are_not_held_for_ever(vocabulary: list[bytes], size: int):
    detokenizer = Detokenizer(byte_level(vocabulary))
    ids = [number % len(vocabulary) for number in range(300)]
    given_out = sum(len(detokenizer.push(block)) for block in in_blocks(ids, size))
    assert given_out >= 300 // len(vocabulary) - 7


def test_an_incomplete_character_is_flushed_as_it_decodes():
    detokenizer = Detokenizer(byte_level([b"a", b"\xe2\x82"]))
    assert detokenizer.push([0, 1]) == ""
    assert detokenizer.settled == 0
    assert detokenizer.flush() == "a\ufffd"
    assert detokenizer.settled == 2
    assert detokenizer.flush() == ""


def test_tokens_without_text_are_settled_at_once():
    detokenizer = Detokenizer(sentence_piece(["", "a"]))
    assert (detokenizer.push([0]), detokenizer.settled) == ("", 1)
    assert (detokenizer.push([1]), detokenizer.settled) == ("a", 2)
    assert (detokenizer.push([0]), detokenizer.settled) == ("", 3)


def test_only_a_window_of_the_tokens_is_decoded():
    longest = 0

    def decode(ids: list[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return "x" * len(ids)

    pieces_of(decode, [[0]] * 500)
    assert longest < 20
