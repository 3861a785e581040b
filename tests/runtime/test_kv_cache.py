from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_trt import names
from spec_trt.errors import BackendError, ConfigError
from spec_trt.runtime import kv_cache as kv_cache_module
from spec_trt.runtime.cache_memory import on_host
from spec_trt.runtime.kv_cache import KVCache
from tests.runtime.fake_session import fake_facts


def filled(cache, nodes, batch=1, seed=0):
    shape = cache.new_rows(batch, nodes).shape
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(cache.buffer.dtype)


def test_views_share_the_one_allocation():
    cache = KVCache(fake_facts(), batch=3, step=8)
    views = cache.views()
    assert list(views) == ["past_key.0", "past_value.0", "past_key.1", "past_value.1"]
    cache.buffer[3, 2] = 7.0
    assert (views[names.past_value(1)][2] == 7.0).all()
    assert all(view.is_contiguous() and view.shape == (3, 1, 8, 2) for view in views.values())
    assert cache.views(slot=2, batch=1)[names.past_value(1)].data_ptr() == views[names.past_value(1)][2].data_ptr()


@given(
    steps=st.lists(st.lists(st.sampled_from([(), (0,), (0, 2), (0, 1, 3), (3,)]), min_size=2, max_size=2), max_size=20)
)
@settings(deadline=None)
def test_commit_appends_the_accepted_rows_in_order(steps):
    cache = KVCache(fake_facts(), batch=2, step=4)
    expected: list[list[torch.Tensor]] = [[], []]
    for number, paths in enumerate(steps):
        rows = filled(cache, 4, batch=2, seed=number)
        cache.commit(rows, paths)
        for slot, path in enumerate(paths):
            expected[slot] += [rows[:, slot, :, node].clone() for node in path]
    assert cache.lengths.tolist() == [len(rows) for rows in expected]
    for slot, rows in enumerate(expected):
        if rows:
            torch.testing.assert_close(cache.buffer[:, slot, :, : len(rows)], torch.stack(rows, dim=2), rtol=0, atol=0)


def test_growth_keeps_rows_and_leaves_little_unused():
    cache = KVCache(fake_facts(), step=32)
    for number in range(1500):
        cache.commit(filled(cache, 1, seed=number), [[0]])
        assert cache.capacity % 32 == 0
        assert cache.capacity - cache.lengths[0] < 32 + cache.lengths[0] / 8
    first = filled(cache, 1, seed=0)
    torch.testing.assert_close(cache.buffer[:, :, :, :1], first, rtol=0, atol=0)


@pytest.fixture
def nan_in_new_memory():
    """Memory that PyTorch hands out holds NaN until it is written."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("nan_in_new_memory")
def test_unused_rows_are_finite_whatever_the_memory_held():
    cache = KVCache(fake_facts(), step=4)
    assert (cache.buffer == 0).all()
    cache.commit(filled(cache, 3), [range(3)])
    for rows in (9, 30, 5):
        cache.reserve(rows)
        assert cache.buffer.isfinite().all()
        cache.reset(0)
        assert cache.buffer.isfinite().all()


@given(
    used=st.lists(st.integers(0, 3), min_size=2, max_size=2),
    capacities=st.lists(st.sampled_from([4, 8, 12, 40]), min_size=1, max_size=6),
)
@settings(deadline=None)
def test_rows_stay_whatever_the_buffer_grows_and_shrinks_to(used, capacities):
    cache = KVCache(fake_facts(), batch=2, step=4)
    rows = filled(cache, 3, batch=2)
    cache.commit(rows, [range(count) for count in used])
    for capacity in capacities:
        cache._resize(2, capacity)
        assert cache.capacity == capacity
        for slot, count in enumerate(used):
            torch.testing.assert_close(cache.buffer[:, slot, :, :count], rows[:, slot, :, :count], rtol=0, atol=0)


def test_a_buffer_grows_within_its_memory():
    cache = KVCache(fake_facts(), step=4)
    places = set()
    for _ in range(400):
        cache.commit(filled(cache, 1), [[0]])
        places.add(cache.buffer.data_ptr())
    assert len(places) < 14  # a memory half as large again each time, where every growth took new memory before


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_rows_are_taken_as_a_tensor_or_as_the_hosts_array(dtype):
    facts = replace(fake_facts(), dtype=dtype)
    caches = KVCache(facts), KVCache(facts)
    rows = filled(caches[0], 3)
    caches[0].commit(rows, [[0, 2]])
    caches[1].commit(on_host(rows), [[0, 2]])
    torch.testing.assert_close(caches[0].buffer, caches[1].buffer, rtol=0, atol=0)
    torch.testing.assert_close(caches[0].buffer[:, :, :, 1], rows[:, :, :, 2], rtol=0, atol=0)


def test_tentative_rows_stand_behind_the_committed_and_go_with_the_next_commit():
    cache = KVCache(fake_facts(), step=4)
    cache.commit(filled(cache, 2, seed=1), [[0, 1]])
    level = filled(cache, 3, seed=2)
    cache.append_tentative(level, [[2, 0]])
    cache.append_tentative(level, [[1]])
    assert (cache.lengths[0], cache.tentative[0]) == (2, 3)
    torch.testing.assert_close(cache.buffer[:, :, :, 2:5], level[:, :, :, [2, 0, 1]], rtol=0, atol=0)
    accepted = filled(cache, 1, seed=3)
    cache.commit(accepted, [[0]])
    assert (cache.lengths[0], cache.tentative[0]) == (3, 0)
    torch.testing.assert_close(cache.buffer[:, :, :, 2:3], accepted, rtol=0, atol=0)
    cache.append_tentative(level, [[0]])
    cache.truncate()
    assert cache.tentative[0] == 0


def test_a_short_sequence_after_a_long_one_reads_no_more_than_alone():
    cache, alone = KVCache(fake_facts(), step=4), KVCache(fake_facts(), step=4)
    for _ in range(200):
        cache.commit(filled(cache, 1), [[0]])
    cache.reset(0, rows=6)
    alone.reset(0, rows=6)
    assert cache.capacity == alone.capacity == 8
    both = KVCache(fake_facts(), batch=2, step=4)
    both.commit(filled(both, 40, batch=2), [range(40), [0]])
    both.reset(1, rows=3)
    assert both.capacity >= 40


def test_reset_and_commit_touch_their_own_slot_only():
    cache = KVCache(fake_facts(), batch=3, step=4)
    rows = filled(cache, 2, batch=1)
    cache.commit(rows, [[0, 1]], slot=1)
    cache.commit(rows, [[1]], slot=2)
    cache.reset(1)
    assert cache.lengths.tolist() == [0, 0, 1]
    torch.testing.assert_close(cache.buffer[:, 2, :, :1], rows[:, 0, :, 1:], rtol=0, atol=0)


@pytest.mark.parametrize("bad", [{"batch": 0}, {"step": 0}])
def test_refuses_impossible_sizes(bad):
    with pytest.raises(ConfigError, match="batch >= 1 and step >= 1"):
        KVCache(fake_facts(), **bad)


def test_on_a_device_every_sequence_begins_where_tensorrt_lets_a_tensor_begin():
    cache = KVCache(fake_facts(), batch=3, capacity=64, device="meta")
    offsets = {view.storage_offset() * 4 for slot in range(3) for view in cache.views(slot, 1).values()}
    assert {offset % 256 for offset in offsets} == {0}
    with pytest.raises(BackendError, match=r"multiple of 256 bytes for batches, found 320 bytes for 40 rows: build"):
        KVCache(fake_facts(), batch=3, capacity=40, device="meta")
    assert KVCache(fake_facts(), capacity=40, device="meta").capacity == 40


@given(
    used=st.lists(st.integers(0, 3), min_size=3, max_size=3),
    shapes=st.lists(st.tuples(st.integers(1, 5), st.sampled_from([4, 8, 12, 40])), min_size=1, max_size=8),
    limit=st.sampled_from([None, 5 * 40 * 4 * 2 * 4]),
)
@settings(deadline=None)
def test_rows_stay_whatever_batch_and_capacity_the_buffer_is_laid_out_for(used, shapes, limit):
    cache = KVCache(fake_facts(), batch=3, step=4, limit_bytes=limit)
    rows = filled(cache, 3, batch=3)
    cache.commit(rows, [range(count) for count in used])
    for batch, capacity in shapes:
        cache.fit(capacity, batch)
        used = [*used, *[0] * 5][: len(used)][:batch] + [0] * max(0, batch - len(used))
        assert (cache.batch, cache.capacity, cache.lengths.tolist()) == (batch, capacity, used)
        for slot, count in enumerate(used):
            if count:
                torch.testing.assert_close(cache.buffer[:, slot, :, :count], rows[:, slot, :, :count], rtol=0, atol=0)


def test_sequences_longer_than_the_buffer_becomes_are_cut():
    cache = KVCache(fake_facts(), batch=2, step=4)
    rows = filled(cache, 10, batch=2)
    cache.commit(rows, [range(10), range(2)])
    cache.fit(4)
    assert cache.lengths.tolist() == [4, 2]
    torch.testing.assert_close(cache.buffer[:, 0], rows[:, 0, :, :4], rtol=0, atol=0)


def test_two_sequences_change_places():
    cache = KVCache(fake_facts(), batch=3, step=8)
    rows = filled(cache, 5, batch=3)
    cache.commit(rows, [range(5), range(3), [4]])
    cache.swap(0, 2)
    assert cache.lengths.tolist() == [1, 3, 5]
    torch.testing.assert_close(cache.buffer[:, 0, :, :1], rows[:, 0 + 2, :, 4:], rtol=0, atol=0)
    torch.testing.assert_close(cache.buffer[:, 2, :, :5], rows[:, 0], rtol=0, atol=0)
    cache.swap(1, 1)
    torch.testing.assert_close(cache.buffer[:, 1, :, :3], rows[:, 1, :, :3], rtol=0, atol=0)


def test_a_reset_keeps_the_rows_that_the_next_sequence_begins_with():
    cache = KVCache(fake_facts(), step=4)
    rows = filled(cache, 30)
    cache.commit(rows, [range(30)])
    cache.reset(0, rows=9, keep=6)
    assert (cache.capacity, cache.lengths.tolist()) == (12, [6])
    torch.testing.assert_close(cache.buffer[:, :, :, :6], rows[:, :, :, :6], rtol=0, atol=0)


def test_a_limited_cache_never_takes_more_and_says_so():
    cache = KVCache(fake_facts(), step=4, limit_bytes=1000)
    place = cache.buffer.data_ptr()
    fits = max(rows for rows in range(1, 100) if cache.bytes_for(1, rows) <= 1000)
    cache.reserve(fits)
    assert cache.buffer.data_ptr() == place
    with pytest.raises(BackendError, match=r"the cache may take 1000 bytes, found a need for \d+: shorten"):
        cache.reserve(fits + 1)
    assert cache.buffer.data_ptr() == place


def test_more_rows_never_round_to_fewer():
    cache = KVCache(fake_facts(), step=4)
    rounded = [cache.rounded(rows) for rows in range(5000)]
    assert rounded == sorted(rounded)
    assert all(rows <= capacity <= rows + 4 + rows / 8 for rows, capacity in enumerate(rounded))


def test_memory_is_given_back_where_that_is_asked_for_and_much(monkeypatch):
    monkeypatch.setattr(kv_cache_module, "_LITTLE_BYTES", 4000)
    keeps, gives = KVCache(fake_facts(), step=4), KVCache(fake_facts(), step=4, gives_back=True)
    for cache in (keeps, gives):
        cache.commit(filled(cache, 400), [range(400)])
        cache.reset(0, rows=8, keep=3)
    assert gives._storage.nbytes * 10 < keeps._storage.nbytes
    torch.testing.assert_close(gives.buffer[:, :, :, :3], keeps.buffer[:, :, :, :3], rtol=0, atol=0)
    little = KVCache(fake_facts(), step=4, gives_back=True)
    little.fit(40)
    memory = little.memory
    assert 1000 < memory.nbytes < 4000
    little.fit(4)
    assert little.memory is memory
