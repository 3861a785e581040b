from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spec_trt.errors import ConfigError
from spec_trt.runtime.detokenizer import Detokenizer
from spec_trt.runtime.stop import Emission, FinishReason, StopChecker

EURO = "€".encode()
VOCABULARY = [b"a", b"b", b"ab", b"ba", b"", b"aab", EURO[:1], EURO[1:], EURO[:2], EURO[2:], "é".encode()]
CHARACTERS = [[0], [1], [2], [3], [4], [5], [6, 7], [8, 9], [10]]
"""Tokens that make whole characters together."""
EOS_IDS = (90, 91)

Result = tuple[str, list[int], FinishReason | None]


def decode(ids: list[int]) -> str:
    return b"".join(VOCABULARY[token] for token in ids).decode(errors="replace")


def checker(*, stop: Sequence[str] = (), max_new_tokens: int = 100) -> StopChecker:
    detokenizer = Detokenizer(decode)
    return StopChecker(detokenizer=detokenizer, eos_ids=EOS_IDS, stop=stop, max_new_tokens=max_new_tokens)


def emissions(rules: StopChecker, blocks: Sequence[Sequence[int]]) -> list[Emission]:
    return [rules.push(block) for block in blocks]


def joined(parts: Sequence[Emission]) -> Result:
    text = "".join(part.text for part in parts)
    return text, [token for part in parts for token in part.token_ids], parts[-1].finish_reason


def reference(tokens: list[int], stop: Sequence[str], max_new_tokens: int) -> Result:
    """The rules, on the whole text at once."""
    tokens = tokens[:max_new_tokens]
    reason: FinishReason = "length"
    eos = [index for index, token in enumerate(tokens) if token in EOS_IDS]
    if eos:
        tokens, reason = tokens[: eos[0]], "eos"
    text = decode(tokens)
    cuts = [text.find(string) for string in stop if string in text]
    if not cuts:
        return text, tokens, reason
    text = text[: min(cuts)]
    kept = max(size for size in range(len(tokens) + 1) if text.startswith(decode(tokens[:size])))
    return text, tokens[:kept], "stop"


token_lists = st.lists(st.sampled_from([*CHARACTERS, *([eos] for eos in EOS_IDS)]), min_size=1, max_size=14).map(
    lambda characters: [token for character in characters for token in character]
)
stop_strings = st.lists(st.text(st.sampled_from("ab€é"), min_size=1, max_size=4), max_size=3)
block_sizes = st.lists(st.integers(1, 5), min_size=30, max_size=30)


def in_blocks(tokens: list[int], sizes: list[int]) -> list[list[int]]:
    blocks, start = [], 0
    for size in sizes:
        blocks.append(tokens[start : start + size])
        start += size
    return [block for block in blocks if block]


@given(token_lists, stop_strings, block_sizes, st.integers(0, 6))
@example([0, 1, 0, 0], ["abaa", "b"], [1] * 30, 0)
@example([0, 1, 0, 1], ["abaa", "b"], [1] * 30, 0)
@example([6, 7, 0], ["€a"], [1] * 30, 0)
def test_any_blocks_give_the_result_of_the_whole_text(tokens, stop, sizes, spare):
    limit = max(1, len(tokens) - spare)
    parts = emissions(checker(stop=stop, max_new_tokens=limit), in_blocks(tokens, sizes))
    assert joined(parts) == reference(tokens, stop, limit)


@given(token_lists, stop_strings, block_sizes)
def test_what_is_given_out_is_a_beginning_of_every_possible_result(tokens, stop, sizes):
    rules, text = checker(stop=stop), ""
    token_ids: list[int] = []
    blocks = in_blocks(tokens, sizes)
    for count, block in enumerate(blocks, start=1):
        emission = rules.push(block)
        text, token_ids = text + emission.text, token_ids + emission.token_ids
        seen = [token for block in blocks[:count] for token in block]
        for ending in ([], [90], [0, 90], [1, 90], [1, 0, 1, 90], [10, 90]):
            final_text, final_ids, _ = reference([*seen, *ending], stop, 100)
            assert final_text.startswith(text)
            assert final_ids[: len(token_ids)] == token_ids


@given(token_lists, st.integers(1, 20))
def test_the_limit_is_never_overshot(tokens, limit):
    parts = emissions(checker(max_new_tokens=limit), [tokens])
    assert len(joined(parts)[1]) <= limit


@pytest.mark.parametrize("eos", EOS_IDS)
def test_an_eos_inside_a_block_ends_it(eos):
    assert joined(emissions(checker(), [[0, eos, 1]])) == ("a", [0], "eos")


def test_an_eos_as_the_last_allowed_token_wins_over_the_limit():
    assert joined(emissions(checker(max_new_tokens=2), [[0, 90, 1]])) == ("a", [0], "eos")
    assert joined(emissions(checker(max_new_tokens=1), [[0, 90, 1]])) == ("a", [0], "length")


def test_a_stop_string_completed_by_the_last_allowed_token_wins_over_the_limit():
    assert joined(emissions(checker(stop=["ab"], max_new_tokens=3), [[0], [0, 1]])) == ("a", [0], "stop")


def test_a_stop_string_before_an_eos_wins():
    assert joined(emissions(checker(stop=["ab"]), [[0, 1, 90]])) == ("", [], "stop")


def test_text_may_keep_a_part_of_a_token_that_token_ids_drops():
    assert joined(emissions(checker(stop=["b"]), [[0, 2]])) == ("aa", [0], "stop")


def test_a_possible_beginning_is_held_back_and_flushed_at_the_end():
    rules = checker(stop=["bb"])
    assert rules.push([0, 1]) == Emission(text="a", token_ids=[0], finish_reason=None)
    assert rules.push([0]) == Emission(text="ba", token_ids=[1, 0], finish_reason=None)
    assert rules.push([3]) == Emission(text="ba", token_ids=[3], finish_reason=None)
    assert rules.push([1]) == Emission(text="", token_ids=[], finish_reason=None)
    assert rules.push([90]) == Emission(text="b", token_ids=[1], finish_reason="eos")


def test_a_token_partly_held_back_is_not_given_out():
    rules = checker(stop=["bb"])
    assert rules.push([2]) == Emission(text="a", token_ids=[], finish_reason=None)
    assert rules.push([1]) == Emission(text="", token_ids=[], finish_reason="stop")


def test_half_a_character_is_flushed_at_the_end():
    rules = checker()
    assert rules.push([6]) == Emission(text="", token_ids=[], finish_reason=None)
    assert rules.push([90]) == Emission(text="\ufffd", token_ids=[6], finish_reason="eos")


def test_what_comes_after_the_end_is_ignored():
    rules = checker()
    rules.push([90])
    assert rules.push([0]) == Emission(text="", token_ids=[], finish_reason="eos")


def test_remaining_counts_down_to_the_end():
    rules = checker(max_new_tokens=5)
    assert (rules.remaining, rules.finish_reason) == (5, None)
    rules.push([0, 0, 0])
    assert (rules.remaining, rules.finish_reason) == (2, None)
    rules.push([0, 0, 0])
    assert (rules.remaining, rules.finish_reason) == (0, "length")


def test_no_tokens_allowed_is_finished_from_the_start():
    rules = checker(max_new_tokens=0)
    assert rules.finish_reason == "length"
    assert rules.push([0]) == Emission(text="", token_ids=[], finish_reason="length")


@pytest.mark.parametrize(
    ("stop", "limit", "message"),
    [
        ([""], 1, "found an empty one"),
        (["a", ""], 1, "found an empty one"),
        ("ab", 1, "must be a list"),
        ([], -1, "found -1"),
    ],
)
def test_rules_that_make_no_sense_are_refused(stop, limit, message):
    with pytest.raises(ConfigError, match=message):
        checker(stop=stop, max_new_tokens=limit)
