import sys

import onnx
import pytest
import torch

from spec_trt.errors import BackendError
from spec_trt.ort import onnxruntime_version
from spec_trt.runtime.ort_session import OrtSession


@pytest.fixture
def graph(tmp_path):
    """out = a + b of any shape, and unused = a * b."""
    a, b = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["rows", 2]) for name in "ab")
    outputs = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["rows", 2]) for name in ("out", "product")
    ]
    nodes = [onnx.helper.make_node("Add", ["a", "b"], ["out"]), onnx.helper.make_node("Mul", ["a", "b"], ["product"])]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "sum", [a, b], outputs),
        opset_imports=[onnx.helper.make_opsetid("", 20)],
        ir_version=10,
    )
    onnx.save(model, tmp_path / "graph.onnx")
    return tmp_path / "graph.onnx"


def test_runs_again_and_again_on_the_tensors_it_is_bound_to(graph):
    a, b, out = torch.ones(3, 2), torch.full((3, 2), 2.0), torch.empty(3, 2)
    binding = OrtSession(graph, threads=1).bind({"a": a, "b": b}, {"out": out})
    binding.run()
    assert (out == 3).all()
    a.fill_(5)
    binding.run()
    assert (out == 7).all()


def test_views_of_a_larger_allocation_are_bound_by_address(graph):
    rows = torch.arange(12.0).view(2, 3, 2)
    out = torch.zeros(2, 3, 2)
    OrtSession(graph, threads=1).bind({"a": rows[0], "b": rows[1]}, {"product": out[1]}).run()
    assert (out[0] == 0).all()
    assert (out[1] == rows[0] * rows[1]).all()


def test_empty_tensors_can_be_bound(graph):
    empty = [torch.empty(0, 2) for _ in range(3)]
    OrtSession(graph, threads=1).bind({"a": empty[0], "b": empty[1]}, {"out": empty[2]}).run()


def test_refuses_what_does_not_fit(graph):
    session = OrtSession(graph, threads=1)
    a = torch.zeros(2, 2)
    with pytest.raises(BackendError, match="interface differs at b, c"):
        session.bind({"a": a, "c": a}, {"out": a})
    with pytest.raises(BackendError, match="interface differs at extra"):
        session.bind({"a": a, "b": a}, {"extra": a})
    with pytest.raises(BackendError, match="must be contiguous"):
        session.bind({"a": torch.zeros(2, 4).t()[:2].t()[:, :2], "b": a}, {"out": a})
    binding = session.bind({"a": a, "b": torch.zeros(3, 2)}, {"out": a})
    with pytest.raises(BackendError, match="ONNX Runtime failed"):
        binding.run()


def test_a_damaged_file_is_one_line(graph):
    graph.write_bytes(graph.read_bytes()[:40])
    with pytest.raises(BackendError, match=r"can't load .*graph\.onnx") as caught:
        OrtSession(graph)
    assert "\n" not in str(caught.value)


def test_a_missing_provider_is_named(graph):
    if torch.cuda.is_available():
        pytest.skip("this machine may have the provider")
    with pytest.raises(BackendError, match=r"no CUDAExecutionProvider here .*spec-trt\[gpu\]"):
        OrtSession(graph, device="cuda")


def test_a_missing_library_names_both_extras(graph, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    for use in (onnxruntime_version, lambda: OrtSession(graph)):
        with pytest.raises(BackendError, match=r"spec-trt\[cpu\].*spec-trt\[gpu\]"):
            use()
