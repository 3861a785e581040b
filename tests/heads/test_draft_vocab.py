import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spec_trt.errors import ModelError
from spec_trt.heads.draft_vocab import draft_ids_in, draft_ids_of, draft_vocab_of, needed_maps, offsets_of, presence_of

IDS = [2, 3, 5, 40]
VOCAB = 41


@given(st.sets(st.integers(0, 99), min_size=1), st.booleans())
def test_offsets_give_the_ids_back(ids, with_presence):
    ids = sorted(ids)
    t2d = presence_of(ids, 100) if with_presence else None
    assert draft_ids_of(offsets_of(ids), t2d, 100, "head") == ids


@given(st.sets(st.integers(0, 99), min_size=1))
def test_presence_tells_ids_from_offsets(ids):
    ids = sorted(ids)
    assert draft_ids_of(torch.tensor(ids), presence_of(ids, 100), 100, "head") == ids


def test_ids_that_are_no_offsets_are_taken_as_ids():
    assert draft_ids_of(torch.tensor(IDS, dtype=torch.int32), None, VOCAB, "head") == IDS


@pytest.mark.parametrize("d2t", [[0, -1], [-1, 0, 5], [39, 40, 41], [5, 3], [7, 6, 7]])
def test_what_is_neither_is_refused(d2t):
    with pytest.raises(ModelError, match=r"d2t of head is neither .* expected \d ascending ids below 41, the target's"):
        draft_ids_of(torch.tensor(d2t), None, VOCAB, "head")


def test_a_presence_that_disagrees_is_refused():
    with pytest.raises(ModelError, match="d2t and t2d of head disagree: they name different ids"):
        draft_ids_of(offsets_of(IDS), presence_of([2, 3, 5, 39], VOCAB), VOCAB, "head")


@pytest.mark.parametrize("d2t", [torch.ones(3), torch.ones(3, dtype=torch.bool), torch.ones(2, 2, dtype=torch.int64)])
def test_another_tensor_is_refused(d2t):
    with pytest.raises(ModelError, match="d2t of head is no list of integers: found"):
        draft_ids_of(d2t, None, VOCAB, "head")


def test_the_whole_vocabulary_needs_no_ids():
    assert draft_ids_in({}, VOCAB, "head") is None
    assert draft_ids_in({"d2t": torch.zeros(VOCAB, dtype=torch.int64)}, VOCAB, "head") is None
    assert needed_maps({}, VOCAB, VOCAB) == {}
    assert needed_maps({"t2d": torch.ones(1)}, 4, VOCAB) == {"d2t": [4], "t2d": [VOCAB]}


def test_the_size_is_the_configs_else_the_maps_else_the_targets():
    d2t = {"d2t": offsets_of(IDS)}
    assert draft_vocab_of({"draft_vocab_size": 7}, d2t, VOCAB, "head") == 7
    assert draft_vocab_of({"draft_vocab_size": None}, d2t, VOCAB, "head") == 4
    assert draft_vocab_of({}, {}, VOCAB, "head") == VOCAB


@pytest.mark.parametrize("size", [0, 42, "4", True, 4.0])
def test_a_size_of_no_use_is_refused(size):
    with pytest.raises(ModelError, match=f"head has draft_vocab_size {size}: expected at most 41"):
        draft_vocab_of({"draft_vocab_size": size}, {}, VOCAB, "head")
