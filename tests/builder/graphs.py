"""Tiny graphs for the passes: written as ONNX text, run before and after."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

from spec_trt import names

Array = NDArray[Any]
Arrays = Mapping[str, Array]
_HEADER = '<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1, "spec_trt" : 1]>'


def make_graph(text: str, **weights: Array) -> ir.Model:
    """Parse `name (inputs) => (outputs) { nodes }`, with weights as initializers and all shapes inferred."""
    proto = onnx.parser.parse_model(f"{_HEADER} {text}")
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    return ir.serde.deserialize_model(onnx.shape_inference.infer_shapes(proto))


def run_graph(model: ir.Model, feeds: Arrays) -> dict[str, Array]:
    """Run a model, without ONNX Runtime's own rewrites."""
    model = model.clone()
    if not any(node.domain == names.OP_DOMAIN for node in model.graph):
        model.graph.opset_imports.pop(names.OP_DOMAIN, None)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(ir.serde.serialize_model(model).SerializeToString(), options)
    outputs = [output.name for output in session.get_outputs()]
    return dict(zip(outputs, session.run(outputs, dict(feeds)), strict=True))


def apply(graph_pass: ir.passes.PassBase, model: ir.Model) -> ir.Model:
    """Apply a pass to a copy of a model."""
    copy = model.clone()
    graph_pass(copy)
    return copy


def op_types(model: ir.Model) -> list[str]:
    """The kinds of the graph's nodes, in order."""
    return [node.op_type for node in model.graph]


def assert_same(before: ir.Model, after: ir.Model, feeds: Arrays, tolerance: float = 1e-5) -> None:
    """Both models have the same outputs, by name, value and type."""
    expected, found = run_graph(before, feeds), run_graph(after, feeds)
    assert list(expected) == list(found)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_allclose(found[name], array, rtol=tolerance, atol=tolerance, err_msg=name)


def random_array(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    """Seeded normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
