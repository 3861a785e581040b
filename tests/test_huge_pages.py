import mmap
import sys

import numpy as np
import pytest

from spec_trt import huge_pages
from spec_trt.huge_pages import huge_pages_for_new_memory, prefer_huge_pages

SIZE = 6 << 20


@pytest.fixture
def advised(monkeypatch):
    """What madvise was called with, in place of the call."""
    calls = []
    monkeypatch.setattr(huge_pages, "_madvise", lambda: lambda *call: calls.append(call))
    return calls


def test_contents_survive():
    memory = np.frombuffer(mmap.mmap(-1, SIZE), dtype=np.uint8)
    with huge_pages_for_new_memory():
        fresh = np.arange(SIZE, dtype=np.int64)
    prefer_huge_pages(memory.ctypes.data, SIZE)
    assert (fresh == np.arange(SIZE)).all()
    assert (memory == 0).all()


@pytest.mark.skipif(sys.platform != "linux", reason="huge pages are asked for on Linux alone")
def test_new_memory_is_advised_and_old_is_not(advised):
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # NumPy's own memory may be freed memory, handed out again
    old = np.frombuffer(mmap.mmap(-1, 4 * SIZE, private), dtype=np.uint8)
    with huge_pages_for_new_memory():
        fresh = np.frombuffer(mmap.mmap(-1, 4 * SIZE, private), dtype=np.uint8)

    def covers(array):
        middle = array.ctypes.data + array.nbytes // 2
        return any(start <= middle < start + size for start, size, _ in advised)

    assert covers(fresh)
    assert not covers(old) or abs(old.ctypes.data - fresh.ctypes.data) <= 5 * SIZE  # neighbours may be one region
    assert {advice for *_, advice in advised} == {14, 25}


def test_only_whole_huge_pages_are_advised(advised):
    page = 2 << 20
    prefer_huge_pages(page - 1, page)
    assert advised == []
    prefer_huge_pages(page - 1, 2 * page + 1)
    assert advised == [(page, 2 * page, 14)]


def test_elsewhere_nothing_happens(monkeypatch, tmp_path):
    monkeypatch.setattr(huge_pages, "_MAPS", tmp_path / "none")
    monkeypatch.setattr(sys, "platform", "plan9")
    huge_pages._madvise.cache_clear()
    with huge_pages_for_new_memory():
        pass
    prefer_huge_pages(0, SIZE)
    huge_pages._madvise.cache_clear()
