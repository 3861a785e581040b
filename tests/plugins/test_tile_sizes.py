"""How work is cut up: pure arithmetic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec_trt.plugins.tree_attention.tile_sizes import (
    MAX_PROGRAMS,
    padded_head_dim,
    partial_bytes,
    row_tiles,
    split_count,
    tile_sizes,
    workspace_bytes,
)


@pytest.mark.parametrize(("rows", "block"), [(1, 16), (16, 16), (17, 32), (33, 64), (65, 128), (500, 128)])
def test_a_tile_holds_the_rows_or_the_most_it_can(rows: int, block: int):
    assert tile_sizes(capability=89, head_dim=128, itemsize=2, rows=rows).block_rows == block


def test_a_gpu_that_the_table_lacks_takes_the_one_below_it():
    chosen = {
        capability: tile_sizes(capability=capability, head_dim=128, itemsize=2, rows=16) for capability in (120, 121)
    }
    assert chosen[120] == chosen[121] != tile_sizes(capability=103, head_dim=128, itemsize=2, rows=16)


@pytest.mark.parametrize(("head_dim", "padded"), [(8, 16), (64, 64), (80, 128), (96, 128), (128, 128), (256, 256)])
def test_head_dims_are_padded_to_powers_of_two(head_dim: int, padded: int):
    assert padded_head_dim(head_dim) == padded


def test_one_sequence_fills_a_gpu_when_its_past_is_long():
    sizes = tile_sizes(capability=90, head_dim=128, itemsize=2, rows=4)
    few = split_count(tiles=8, past=32768, window=64, sizes=sizes, multiprocessors=132)
    assert 8 * few >= 2 * 132
    assert split_count(tiles=8, past=64, window=16, sizes=sizes, multiprocessors=132) == 2
    assert split_count(tiles=600, past=32768, window=64, sizes=sizes, multiprocessors=132) == 1


@given(
    batch=st.integers(1, 8),
    nodes=st.integers(1, 64),
    kv_heads=st.sampled_from([1, 2, 8]),
    group=st.sampled_from([1, 3, 8]),
    capability=st.sampled_from([75, 80, 89, 90, 120]),
    multiprocessors=st.integers(1, 400),
    past=st.integers(0, 10**6),
)
def test_the_workspace_holds_every_pass_it_was_sized_for(
    batch: int, nodes: int, kv_heads: int, group: int, capability: int, multiprocessors: int, past: int
):
    """It is reserved once, for the largest shapes, yet smaller passes have more splits."""
    sizes = tile_sizes(capability=capability, head_dim=128, itemsize=2, rows=group * nodes)
    tiles = batch * kv_heads * row_tiles(group * nodes, sizes)
    splits = split_count(tiles=tiles, past=past, window=64, sizes=sizes, multiprocessors=multiprocessors)
    needed = partial_bytes(splits * batch * kv_heads * group * nodes, 128) if splits > 1 else 0
    reserved = workspace_bytes(batch=8, heads=group * kv_heads, kv_heads=kv_heads, nodes=64, head_dim=128)
    assert needed <= reserved <= partial_bytes(2 * MAX_PROGRAMS * 128, 128)
