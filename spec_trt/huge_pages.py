"""Huge pages for weights and cache, where Linux leaves the choice to the program.

A pass reads every weight once. In pages of 4 KiB that is tens of thousands of address translations; in pages
of 2 MiB, a few dozen. With transparent huge pages in the usual `madvise` mode a program must ask for them,
which the libraries below this one do not. Asking is only ever a hint: where the system refuses, or is not
Linux, nothing changes but the speed.
"""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

__all__ = ["huge_pages_for_new_memory", "prefer_huge_pages"]

_HUGE_PAGE_BYTES = 1 << 21
_MADV_HUGEPAGE = 14
_MADV_COLLAPSE = 25
_MAPS = Path("/proc/self/maps")

Region = tuple[int, int]


def prefer_huge_pages(address: int, size: int) -> None:
    """Ask for huge pages behind memory that is still to be written for the first time.

    Args:
        address: Where it begins.
        size: Its bytes.
    """
    _advise((address, address + size), _MADV_HUGEPAGE)


@contextmanager
def huge_pages_for_new_memory() -> Iterator[None]:
    """Move the large memory that the block allocates into huge pages when it ends.

    The copying takes about a second per gigabyte.
    """
    before = _anonymous_regions()
    yield
    for region in _anonymous_regions() - before:
        _advise(region, _MADV_HUGEPAGE)
        _advise(region, _MADV_COLLAPSE)


def _anonymous_regions() -> set[Region]:
    """The process's private, writable memory that is no file."""
    if not _MAPS.is_file():
        return set()
    fields = (line.split() for line in _MAPS.read_text(encoding="utf-8").splitlines())
    spans = (entry[0].split("-") for entry in fields if entry[1] == "rw-p" and (len(entry) < 6 or entry[5] == "[heap]"))
    return {(int(start, 16), int(end, 16)) for start, end in spans}


def _advise(region: Region, advice: int) -> None:
    """Give advice on the whole huge pages inside a region; a refusal is no error."""
    start = -(-region[0] // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
    end = region[1] // _HUGE_PAGE_BYTES * _HUGE_PAGE_BYTES
    madvise = _madvise()
    if madvise is not None and end > start:
        madvise(start, end - start, advice)


@cache
def _madvise() -> "ctypes._NamedFuncPointer | None":
    if sys.platform != "linux":
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function
