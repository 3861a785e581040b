"""Copies on a CPU: by NumPy, of every dtype, in memory of their own."""

import numpy as np
import pytest
import torch

from spec_trt.runtime.cache_memory import copied, joined_rows, new_mask

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.bool]


def some(dtype: torch.dtype) -> torch.Tensor:
    return (torch.arange(24).view(4, 6) % 7).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_copy_is_equal_and_its_own(dtype):
    source = some(dtype)[:, 1:4]  # not contiguous
    copy, expected = copied(source), source.clone()
    source[:] = 0
    assert copy.dtype == dtype
    assert torch.equal(copy, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_joined_in_their_order(dtype):
    parts = [some(dtype), some(dtype)[:0], some(dtype)[1:2]]
    joined = joined_rows(parts)
    assert joined.dtype == dtype
    assert torch.equal(joined, torch.cat(parts))
    parts[0][:] = 0
    assert torch.equal(joined[:4], some(dtype))


def test_arrays_stay_arrays():
    array = np.arange(6.0).reshape(2, 3)
    for found in (copied(array), joined_rows([array[:1], array[1:]])):
        assert isinstance(found, np.ndarray)
        assert not np.shares_memory(found, array)
        assert (found == array).all()


def test_nothing_sees_anything_by_a_new_mask():
    mask = new_mask(2, 3, 5, device=torch.device("cpu"))
    assert (mask.shape, mask.dtype, bool(mask.any())) == ((2, 3, 5), torch.bool, False)
