import torch
from hypothesis import given
from hypothesis import strategies as st

from spec_trt.runtime.kv_cache import KVCache
from spec_trt.runtime.pass_memory import PassMemory
from tests.runtime.fake_session import fake_facts


@given(counts=st.lists(st.integers(1, 3000), min_size=1, max_size=20))
def test_passes_of_many_sizes_take_little_more_than_the_largest(counts):
    memory = PassMemory(torch.empty(0, dtype=torch.float16))
    taken = [memory.take(count) for count in counts]
    assert [len(tensor) for tensor in taken] == counts
    blocks = {tensor.data_ptr(): tensor.untyped_storage().nbytes() // 2 for tensor in taken}
    assert sum(blocks.values()) <= 4 * max(counts)


def test_what_was_handed_out_stays_where_it_is():
    memory = PassMemory(torch.empty(0))
    first = memory.take(3).fill_(1)
    memory.take(1000).fill_(2)
    assert first.tolist() == [1, 1, 1]
    assert memory.take(2).tolist() == [2, 2]


def test_a_caches_passes_share_one_room():
    for cache in (KVCache(fake_facts(), capacity=64), KVCache(fake_facts())):
        assert len({cache.new_rows(1, nodes).data_ptr() for nodes in (17, 1, 8, 16)}) == 1
