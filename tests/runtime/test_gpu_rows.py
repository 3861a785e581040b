"""The way that a GPU's cache is written, but for the kernel: here a loop that reads what the kernel would."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch

from spec_trt.runtime import gpu_rows
from spec_trt.runtime.gpu_rows import GpuRowWriter
from spec_trt.runtime.kv_cache import KVCache
from tests.runtime.fake_session import fake_facts

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def kernel(monkeypatch):
    calls = []

    def commit_rows(buffer, new_rows, paths, counts, lengths):
        calls.append(tuple(paths.shape))
        for row in range(len(paths)):
            for place in range(counts[row]):
                buffer[:, row, :, lengths[row] + place] = new_rows[:, row, :, paths[row, place]]

    monkeypatch.setattr(gpu_rows, "commit_rows", commit_rows)
    return calls


def caches(batch):
    """A cache as on a CPU, and one that is written as on a GPU."""
    plain, written = (KVCache(fake_facts(), batch=batch, capacity=40) for _ in range(2))
    written._writer = GpuRowWriter(CPU)
    return plain, written


def rows(seed, batch, nodes):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((4, batch, 1, nodes, 2)).astype(np.float32))


def test_it_writes_what_the_host_writes(kernel):
    plain, written = caches(batch=2)
    for cache in (plain, written):
        cache.commit(rows(0, 2, 9), [[0, 3, 8], []])
        cache.append_tentative(rows(1, 2, 2), [[0, 1], [1]])
        cache.append_tentative(rows(2, 2, 1), [[0], []])
        cache.commit(rows(3, 2, 17), [range(17), [5, 2]])
        cache.commit(rows(4, 1, 4), [[3]], slot=1)
    assert written.lengths.tolist() == plain.lengths.tolist() == [20, 3]
    for row, length in enumerate(plain.lengths):
        torch.testing.assert_close(written.buffer[:, row, :, :length], plain.buffer[:, row, :, :length], rtol=0, atol=0)
    assert kernel == [(2, 8), (2, 8), (2, 8), (2, 32), (1, 8)]


def test_where_rows_go_is_staged_once_per_size(kernel):
    _, written = caches(batch=1)
    for _ in range(3):
        written.commit(rows(0, 1, 4), [[0, 2]])
    assert len(written._writer._staged) == 1
    assert len(kernel) == 3


def test_rows_are_written_on_the_caches_gpu_whichever_the_thread_has(kernel, monkeypatch):
    _, written = caches(batch=1)
    notes = []

    @contextmanager
    def on_device(device):
        notes.append((device, len(kernel)))
        yield
        notes.append((device, len(kernel)))

    monkeypatch.setattr(gpu_rows, "on_device", on_device)
    written.commit(rows(0, 1, 4), [[0, 2]])
    assert notes == [(CPU, 0), (CPU, 1)]


@pytest.mark.parametrize("nodes", [1, 3, 64])
def test_every_layers_rows_begin_where_tensorrt_lets_them(nodes):
    _, written = caches(batch=1)
    new_rows = written.new_rows(1, nodes)
    assert new_rows.shape == (4, 1, 1, nodes, 2)
    views = written.new_row_views(new_rows)
    first = new_rows.data_ptr()
    assert all(view.is_contiguous() and (view.data_ptr() - first) % 256 == 0 for view in views.values())
    assert len({view.data_ptr() for view in views.values()}) == 4
