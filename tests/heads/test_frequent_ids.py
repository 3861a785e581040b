"""Which ids a reduced vocabulary keeps."""

import pytest

from spec_trt.errors import ConfigError
from spec_trt.heads.frequent_ids import most_frequent_ids


def test_the_most_frequent_ids_are_kept_in_ascending_order():
    chosen = most_frequent_ids({7: 5, 3: 9, 4: 1, 8: 5}, 3, vocab=20)
    assert chosen.ids == [3, 7, 8]
    assert chosen.coverage == pytest.approx(19 / 20)


def test_equally_frequent_ids_are_kept_from_below_and_ids_never_seen_fill_up():
    assert most_frequent_ids({9: 2, 8: 2, 5: 7}, 2, vocab=20).ids == [5, 8]
    assert most_frequent_ids({9: 2}, 4, vocab=20).ids == [0, 1, 2, 9]


def test_ids_that_end_a_text_are_always_kept():
    chosen = most_frequent_ids({7: 5, 3: 9}, 2, vocab=20, always={19})
    assert chosen.ids == [3, 19]
    assert chosen.coverage == pytest.approx(9 / 14)


def test_a_vocabulary_that_leaves_nothing_out_is_refused():
    with pytest.raises(ConfigError, match="--draft-vocab 20 reduces nothing: the model's vocabulary has 20 ids"):
        most_frequent_ids({}, 20, vocab=20)


def test_a_vocabulary_of_nothing_but_ends_is_refused():
    with pytest.raises(ConfigError, match="holds nothing beside the 2 ids"):
        most_frequent_ids({}, 2, vocab=20, always=[5, 6])
