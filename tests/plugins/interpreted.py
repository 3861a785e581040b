"""The kernels against their definitions, in Triton's interpreter; `test_interpreted.py` runs this file.

Bounds: queries, keys and values are rounded to the type first, so what is left is the rounding of the weights and
of the output, half a unit in the last place each, of at most the largest value: together one unit.
"""

import ctypes
import math
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_trt.errors import BackendError
from spec_trt.plugins.commit_rows.launch import commit_rows
from spec_trt.plugins.tree_attention import enqueue as enqueue_module
from spec_trt.plugins.tree_attention.launch import Operands as KernelOperands
from spec_trt.plugins.tree_attention.launch import plan_launch, tree_attention
from spec_trt.plugins.tree_attention.plugin import plugin_class
from spec_trt.plugins.tree_attention.reference import tree_attention as definition
from spec_trt.plugins.tree_attention.support import Attributes
from spec_trt.plugins.tree_attention.tile_sizes import workspace_bytes
from spec_trt.plugins.triton_gpu import Gpu
from tests.export.test_function_body import session
from tests.plugins.operands import VARIANTS, Operands, inputs_of, make_operands

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
# In float32 both sides round: a score of 30 is known to a few millionths, and its weight no better.
UNITS = {"fp32": 1e-5, "fp16": 2**-10, "bf16": 2**-7}


def interpreted(multiprocessors: int) -> Gpu:
    return Gpu(capability=80, multiprocessors=multiprocessors, interpreted=True)


def tensors_of(values: Operands, dtype: str) -> dict[str, Any]:
    tensors = {name: torch.from_numpy(value) for name, value in values.items()}
    return {name: one.to(DTYPES[dtype]) if one.is_floating_point() else one for name, one in tensors.items()}


def rounded(tensors: dict[str, torch.Tensor]) -> Operands:
    """The same values in float32, for the definition."""
    return {name: (one.float() if one.is_floating_point() else one).numpy() for name, one in tensors.items()}


def assert_close(out: torch.Tensor, expected: Any, values: Operands, dtype: str):
    largest = max(1.0, *(float(np.abs(values[name]).max(initial=0.0)) for name in ("value", "past_value")))
    np.testing.assert_allclose(out.float().numpy(), expected, rtol=0, atol=UNITS[dtype] * largest)


@st.composite
def cases(draw: st.DrawFn) -> Operands:
    """Ragged lengths, tentative rows, an empty cache, several tiles of rows and blocks of keys among them."""
    group, kv_heads = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    return make_operands(
        draw(st.integers(0, 2**16)),
        batch=draw(st.integers(1, 2)),
        kv_heads=kv_heads,
        group=group,
        nodes=draw(st.one_of(st.integers(1, 6), st.integers(20, 30))),
        tentative=draw(st.one_of(st.integers(0, 4), st.integers(15, 35))),
        past=draw(st.one_of(st.integers(0, 9), st.integers(60, 200))),
        head_dim=draw(st.sampled_from([8, 64, 80])),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", VARIANTS)
@given(drawn=cases(), multiprocessors=st.sampled_from([1, 8]))
@settings(max_examples=8, deadline=None)
def test_kernel_equals_the_definition_and_the_function_body(
    variant: str, dtype: str, drawn: Operands, multiprocessors: int
):
    attributes = VARIANTS[variant]
    tensors = tensors_of(inputs_of(drawn, attributes), dtype)
    values = rounded(tensors)
    out = tree_attention(**tensors, **attributes, gpu=interpreted(multiprocessors))
    assert out.dtype == DTYPES[dtype]
    assert_close(out, definition(**values, **attributes), values, dtype)
    assert_close(out, session(variant).run(None, values)[0], values, dtype)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_head_dims(head_dim: int):
    for dtype in DTYPES:
        tensors = tensors_of(inputs_of(make_operands(1, 2, 2, 2, 5, 3, 70, head_dim), VARIANTS["plain"]), dtype)
        values = rounded(tensors)
        out = tree_attention(**tensors, scale=head_dim**-0.5, gpu=interpreted(8))
        assert_close(out, definition(**values, scale=head_dim**-0.5), values, dtype)


@pytest.mark.parametrize("multiprocessors", [1, 3, 100])
def test_splits_change_nothing(multiprocessors: int):
    """Some of a hundred splits have no keys, and some only keys that a row does not see."""
    values = inputs_of(make_operands(2, 2, 1, 4, 20, 20, 300, 64), VARIANTS["window"])
    values["past_lens"][:] = [260, 3]
    values["positions"] = values["past_lens"][:, None] + np.arange(40) % 20
    tensors = tensors_of(values, "fp32")
    attributes: dict[str, Any] = {"scale": 0.2, "sliding_window": 90}
    plan = plan_launch(KernelOperands(**tensors), interpreted(multiprocessors))
    assert plan.tiles == 3
    assert plan.splits == {1: 1, 3: 1, 100: 13}[multiprocessors]
    out = tree_attention(**tensors, **attributes, gpu=interpreted(multiprocessors))
    assert_close(out, definition(**values, **attributes), values, "fp32")


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_that_are_not_valid_are_never_read(variant: str):
    values = inputs_of(make_operands(3, 2, 2, 2, 4, 2, 90, 16), VARIANTS[variant])
    values["past_lens"][:] = [70, 5]
    tensors = tensors_of(values, "fp32")
    out = tree_attention(**tensors, **VARIANTS[variant])
    for sequence, committed in enumerate(values["past_lens"]):
        tensors["past_key"][sequence, :, committed + 2 :] = math.nan
        tensors["past_value"][sequence, :, committed + 2 :] = math.nan
    assert torch.equal(tree_attention(**tensors, **VARIANTS[variant]), out)


def test_tentative_columns_may_reach_behind_the_buffer():
    """A window that is fixed has columns that no row of a full buffer stands for."""
    values = inputs_of(make_operands(4, 1, 1, 2, 3, 6, 20, 16), VARIANTS["plain"])
    values["past_lens"][:] = 18
    out = tree_attention(**tensors_of(values, "fp32"), scale=0.5, gpu=interpreted(4))
    assert_close(out, definition(**values, scale=0.5), values, "fp32")


@pytest.mark.parametrize("garbage", [[10**12, -(10**12)], [600, -1]])
def test_no_length_leads_out_of_the_buffer(garbage: list[int]):
    """TensorRT times plugins on inputs that it makes up."""
    values = inputs_of(make_operands(5, 2, 1, 2, 3, 3, 64, 16), VARIANTS["plain"])
    values["past_lens"][:] = [64, 0]
    expected = tree_attention(**tensors_of(values, "fp32"), scale=0.5, gpu=interpreted(4))
    tensors = tensors_of(values, "fp32")
    for name in ("past_key", "past_value"):
        guarded = torch.full((2, 1, 700, 16), math.nan)
        guarded[:, :, :64] = tensors[name]
        tensors[name] = guarded[:, :, :64]
    tensors["past_lens"] = torch.tensor(garbage)
    assert torch.equal(tree_attention(**tensors, scale=0.5, gpu=interpreted(4)), expected)


def test_operands_need_not_be_contiguous():
    """A model's queries are a view of [batch, nodes, heads, head_dim]; a layer's cache one of all layers'."""
    values = inputs_of(make_operands(5, 2, 2, 2, 5, 2, 40, 16), VARIANTS["window"])
    tensors = tensors_of(values, "fp32")
    out = tree_attention(**tensors, **VARIANTS["window"])
    for name in ("query", "key", "value"):
        tensors[name] = tensors[name].transpose(1, 2).contiguous().transpose(1, 2)
    cache = torch.full((2, 3, *tensors["past_key"].shape[1:]), math.nan)
    cache[0, 1:], cache[1, 1:] = tensors["past_key"], tensors["past_value"]
    tensors |= {"past_key": cache[0, 1:], "past_value": cache[1, 1:]}
    assert torch.equal(tree_attention(**tensors, **VARIANTS["window"]), out)


@given(
    seed=st.integers(0, 2**16),
    batch=st.integers(1, 3),
    nodes=st.integers(1, 20),
    dtype=st.sampled_from(sorted(DTYPES)),
)
@settings(max_examples=20, deadline=None)
def test_committed_rows_are_those_of_the_paths(seed: int, batch: int, nodes: int, dtype: str):
    random = np.random.default_rng(seed)
    buffer = torch.from_numpy(random.standard_normal((4, batch + 1, 2, 40, 24))).to(DTYPES[dtype])
    new_rows = torch.from_numpy(random.standard_normal((4, batch, 2, nodes, 24))).to(DTYPES[dtype])
    longest = int(random.integers(1, nodes + 1))
    paths = np.stack([random.permutation(nodes)[:longest] for _ in range(batch)])
    counts, lengths = random.integers(0, longest + 1, batch), random.integers(0, 40 - longest + 1, batch)
    expected = buffer.clone()
    for sequence in range(batch):
        count, length = counts[sequence], lengths[sequence]
        expected[:, sequence + 1, :, length : length + count] = new_rows[:, sequence, :, paths[sequence, :count]]
    commit_rows(buffer[:, 1:], new_rows, *(torch.from_numpy(one) for one in (paths, counts, lengths)))
    assert torch.equal(buffer, expected)


def test_a_commit_stays_inside_its_sequence():
    buffer = torch.zeros(2, 2, 1, 4, 8)
    new_rows = torch.ones(2, 2, 1, 3, 8)
    paths, counts, lengths = torch.tensor([[0, 7, 2], [0, 1, -1]]), torch.tensor([3, 3]), torch.tensor([0, 3])
    commit_rows(buffer, new_rows, paths, counts, lengths)
    assert buffer[0, :, 0, :, 0].tolist() == [[1, 0, 1, 0], [0, 0, 0, 1]]
    commit_rows(buffer[:, 1:], 2 * new_rows[:, 1:], paths[1:], counts[1:], torch.tensor([-2]))
    assert buffer[0, :, 0, :, 0].tolist() == [[1, 0, 1, 0], [0, 0, 0, 1]]


def test_rows_that_do_not_belong_to_the_buffer_are_refused():
    paths = torch.zeros(2, 1, dtype=torch.long)
    with pytest.raises(
        BackendError, match=r"found a buffer \[2, 2, 1, 4, 8\] torch.float32, new rows \[2, 3, 1, 3, 8\]"
    ):
        commit_rows(torch.zeros(2, 2, 1, 4, 8), torch.zeros(2, 3, 1, 3, 8), paths, paths[:, 0], paths[:, 0])


def test_positions_are_missed_by_name():
    values = tensors_of(inputs_of(make_operands(0, 1, 1, 1, 2, 0, 4), VARIANTS["plain"]), "fp32")
    tensors = {name: one[..., :4].repeat_interleave(2, 3) if one.ndim == 4 else one for name, one in values.items()}
    with pytest.raises(BackendError, match="needs the input `positions` with sliding_window"):
        tree_attention(**tensors, scale=1.0, sliding_window=4)


class HostTensor:
    """Stands in for a `DeviceTensor`: the interpreter reads addresses only through PyTorch's own tensors."""

    def __new__(cls, *, address: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Any:
        memory = (ctypes.c_char * (math.prod(shape) * dtype.itemsize)).from_address(address)
        return torch.frombuffer(memory, dtype=dtype).reshape(shape)


@pytest.mark.parametrize("variant", ["plain", "window and softcap"])
def test_the_plugin_launches_from_addresses(variant: str, monkeypatch: pytest.MonkeyPatch):
    trt = pytest.importorskip("tensorrt_rtx")
    streams: list[int] = []
    monkeypatch.setattr(enqueue_module, "DeviceTensor", HostTensor)
    monkeypatch.setattr(enqueue_module, "find_gpu", lambda: interpreted(8))
    monkeypatch.setattr(torch.cuda, "ExternalStream", streams.append)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    attributes = VARIANTS[variant]
    tensors = tensors_of(inputs_of(make_operands(6, 2, 2, 2, 5, 2, 90, 16), attributes), "fp16")
    values = rounded(tensors)
    out = torch.full_like(tensors["query"], math.nan)
    space = workspace_bytes(batch=2, heads=4, kv_heads=2, nodes=5, head_dim=16)
    workspace = torch.full((space,), 255, dtype=torch.uint8)

    plugin = plugin_class(trt)(Attributes(**attributes), [])
    types = {torch.float16: trt.float16, torch.int64: trt.int64, torch.bool: trt.bool}
    inputs = [_description(trt, types[one.dtype], one) for one in tensors.values()]
    addresses = [one.data_ptr() for one in tensors.values()]
    plugin.enqueue(inputs, inputs[:1], addresses, [out.data_ptr()], workspace.data_ptr(), 77)

    assert streams == [77]
    assert_close(out, definition(**values, **attributes), values, "fp16")


def _description(trt: Any, dtype: Any, tensor: torch.Tensor) -> Any:
    description = trt.PluginTensorDesc()
    description.type, description.dims = dtype, tuple(tensor.shape)
    return description
