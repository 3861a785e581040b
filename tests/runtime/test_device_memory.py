"""The stand-in for a GPU's memory, and for the library on it, notices what a real one would not forgive."""

import gc

import pytest
import torch

from tests.runtime.device_memory import ALIGNMENT, DeviceMemory
from tests.runtime.fake_tensorrt import DataType, FakeConfig, FakeContext, FakeEngine, FakeStream


@pytest.fixture
def memory():
    with DeviceMemory() as active:
        yield active


@pytest.mark.usefixtures("memory")
def test_what_is_allocated_is_aligned_and_keeps_its_contents():
    made = [torch.tensor([1.0, 2.0]), torch.ones(3), torch.arange(4), torch.zeros(2, 3).t().contiguous() + 1]
    assert all(tensor.data_ptr() % ALIGNMENT == 0 for tensor in made)
    assert [tensor.flatten().tolist() for tensor in made] == [[1, 2], [1, 1, 1], [0, 1, 2, 3], [1] * 6]
    view = made[2][1:]
    view += 1
    assert made[2].tolist() == [0, 2, 3, 4]


def test_what_is_beyond_an_allocation_or_freed_is_no_memory(memory):
    tensor = torch.ones(4)
    address = tensor.data_ptr()
    held = memory.allocation(address, 16)
    with pytest.raises(AssertionError, match="illegal memory access: 17 bytes"):
        memory.allocation(address, 17)
    view = tensor[1:]
    del tensor
    assert not held.is_freed
    del view
    gc.collect()
    assert held.is_freed
    with pytest.raises(AssertionError, match="illegal memory access"):
        memory.allocation(address, 16)


@pytest.fixture
def context(memory):
    def copy(inputs, outputs):
        outputs["y"].copy_(inputs["x"])

    engine = FakeEngine(
        inputs={"x": DataType.FLOAT},
        outputs={"y": DataType.FLOAT},
        profiles=[{"x": ((1,), (2,), (4,))}],
        output_shapes=lambda shapes: {"y": shapes["x"]},
        compute=copy,
        device_memory_size_v2=8,
        memory=memory,
    )
    return FakeContext(engine, FakeConfig())


def bound(context, size=2):
    tensors = {"x": torch.ones(size), "y": torch.zeros(size), "memory": torch.zeros(2)}
    context.set_device_memory(tensors["memory"].data_ptr(), 8)
    context.set_input_shape("x", (size,))
    for name in "xy":
        context.set_tensor_address(name, tensors[name].data_ptr())
    return tensors


def captured(context, stream):
    def work():
        context.execute_async_v3(stream.handle)

    stream.run(work)
    return stream.capture(work)


def test_a_graph_is_replayed_on_what_it_was_captured_on(context):
    stream, tensors = FakeStream(), bound(context)
    replay = captured(context, stream)
    tensors["x"].fill_(5)
    replay()
    assert tensors["y"].tolist() == [5, 5]


@pytest.mark.parametrize("freed", ["x", "y", "memory"])
def test_a_graph_whose_memory_is_freed(context, freed):
    stream, tensors = FakeStream(), bound(context)
    replay = captured(context, stream)
    del tensors[freed]
    with pytest.raises(AssertionError, match="memory that a captured graph uses was freed"):
        replay()


def test_a_graph_whose_context_has_been_changed(context):
    stream, _held = FakeStream(), bound(context)
    replay = captured(context, stream)
    context.set_input_shape("x", (1,))
    with pytest.raises(AssertionError, match="context of a captured graph has been changed"):
        replay()


def test_a_capture_without_an_ordinary_pass_before_it(context):
    stream, _held = FakeStream(), bound(context)
    with pytest.raises(AssertionError, match="without an ordinary pass of the same shapes"):
        stream.capture(lambda: context.execute_async_v3(stream.handle))
