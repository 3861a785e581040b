from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec_trt.runtime.drafters.ngram import NgramDrafter, NgramIndex, NgramOptions

tokens = st.lists(st.integers(0, 3), max_size=24)


def index_of(text: Sequence[int], *, min_ngram: int = 1, max_ngram: int = 3) -> NgramIndex:
    index = NgramIndex(min_ngram=min_ngram, max_ngram=max_ngram)
    index.extend(text)
    return index


def match_by_scanning(text: list[int], guesses: list[int], min_ngram: int, max_ngram: int) -> tuple[int, int]:
    whole = [*text, *guesses]
    for length in range(min(max_ngram, len(whole)), min_ngram - 1, -1):
        for follower in range(len(text) - 1, length - 1, -1):
            if text[follower - length : follower] == whole[-length:]:
                return length, follower
    return 0, 0


def draft(prompt: Sequence[int], *, max_depth: int = 99, eos_ids: Sequence[int] = (), **options: int) -> list[int]:
    drafter = NgramDrafter(NgramOptions(**options), eos_ids=frozenset(eos_ids))
    drafter.start(prompt, None)
    tree = drafter.propose(max_depth)
    assert tree.parents.tolist() == list(range(-1, len(tree) - 1))
    return [int(token) for token in tree.tokens[1:]]


@given(tokens, tokens, st.integers(1, 3), st.integers(0, 2), st.integers(0, 24))
def test_a_match_is_what_scanning_the_text_finds(text, guesses, min_ngram, more, border):
    index = NgramIndex(min_ngram=min_ngram, max_ngram=min_ngram + more)
    index.extend(text[:border])
    index.extend(text[border:])
    assert index.match(guesses) == match_by_scanning(text, guesses, min_ngram, min_ngram + more)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), tokens, st.integers(0, 30), st.data())
def test_reading_runs_on_into_what_it_read(text, guesses, count, data):
    start = data.draw(st.integers(0, len(text) - 1))
    period = [*text[start:], *guesses]
    expected = [period[number % len(period)] for number in range(count)]
    assert index_of(text).read(start, count, guesses) == expected


def test_the_longest_match_wins_over_a_newer_shorter_one():
    assert draft([1, 2, 3, 7, 9, 3, 8, 1, 2, 3], num_draft_tokens=1, max_ngram=3, min_ngram=1) == [7]


def test_the_newest_of_equal_matches_wins():
    assert draft([1, 2, 7, 1, 2, 8, 1, 2], num_draft_tokens=1, max_ngram=2) == [8]


def test_a_periodic_text_gives_a_draft_of_full_length():
    assert draft([1, 2, 3] * 3, num_draft_tokens=8, max_ngram=3) == [1, 2, 3, 1, 2, 3, 1, 2]
    assert draft([5] * 6, num_draft_tokens=8, max_ngram=4) == [5] * 8


@pytest.mark.parametrize(("matching", "drafted"), [(4, 6), (3, 5), (2, 3), (1, 0)])
def test_a_shorter_match_drafts_fewer(matching, drafted):
    text = [1, 2, 3, 4, 20, 21, 22, 23, 24, 25, 26, 27, 30, *[1, 2, 3, 4][-matching:]]
    assert draft(text, num_draft_tokens=6, max_ngram=4, min_ngram=2) == [20, 21, 22, 23, 24, 25][:drafted]


def test_nothing_is_drafted_behind_an_eos_token():
    assert draft([1, 2, 3, 9, 4, 1, 2], num_draft_tokens=4, max_ngram=2, eos_ids=[9]) == [3, 9]


def test_the_depth_is_a_limit():
    assert draft([1, 2, 3, 4, 5, 1, 2], num_draft_tokens=4, max_ngram=2, max_depth=2) == [3, 4]


def test_a_text_without_a_match_is_the_root_alone():
    assert draft([1, 2, 3, 4]) == []
