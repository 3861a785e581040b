import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spec_trt.runtime.staging import Staging, place

CPU = torch.device("cpu")


@given(sizes=st.lists(st.integers(0, 2000), max_size=8))
def test_pieces_are_aligned_and_do_not_overlap(sizes):
    offsets, end = place(sizes)
    assert all(offset % 256 == 0 for offset in offsets)
    ends = [offset + size for offset, size in zip(offsets, sizes, strict=True)]
    assert all(a <= b for a, b in zip(ends, [*offsets[1:], end], strict=False))


@pytest.fixture
def staging():
    tensors = {
        "ids": torch.tensor([[3, 4]]),
        "mask": torch.tensor([[True, False, True]]),
        "none": torch.zeros(1, 0, dtype=torch.int64),
        "scores": torch.tensor([0.5]),
    }
    return Staging(tensors, CPU)


def test_it_begins_with_what_it_was_made_from(staging):
    assert staging.arrays["ids"].tolist() == [[3, 4]]
    assert staging.arrays["mask"].dtype == np.bool_
    assert staging.arrays["none"].shape == (1, 0)
    assert staging.tensors["ids"].tolist() == [[0, 0]]
    assert staging.tensors["mask"].dtype == torch.bool


def test_one_copy_moves_everything_up(staging):
    staging.arrays["ids"][:] = [[7, 8]]
    staging.upload()
    assert staging.tensors["ids"].tolist() == [[7, 8]]
    assert staging.tensors["mask"].tolist() == [[True, False, True]]
    assert staging.tensors["scores"].tolist() == [0.5]


def test_one_copy_moves_everything_down(staging):
    staging.tensors["scores"].fill_(2)
    staging.tensors["mask"].fill_(True)
    staging.download()
    assert staging.arrays["scores"].tolist() == [2]
    assert staging.arrays["mask"].all()


def test_nothing_is_no_bytes():
    staging = Staging({}, CPU)
    staging.upload()
    staging.download()
    assert staging.arrays == {}
