"""Raise a half-precision graph to float32, for back ends that lack its kernels."""

import numpy as np
import onnx_ir as ir

__all__ = ["raise_to_float32"]

_HALF = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
# Integer attributes that name a data type, and the operators that have them under such a name.
_TYPE_ATTRIBUTES = frozenset({"to", "dtype", "stash_type", "softmax_precision", "output_dtype"})


def raise_to_float32(model: ir.Model) -> None:
    """Turn every fp16 and bf16 tensor, type and cast of `model` into float32, functions included.

    Weights are converted one at a time, when they are read or saved. The result computes what the
    original would with no rounding between operators.
    """
    graphs: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for graph in graphs:
        for node in ir.traversal.RecursiveGraphIterator(graph):
            _raise_node(node)
    for subgraph in model.graphs():
        for value in (*subgraph.inputs, *subgraph.initializers.values()):
            _raise_value(value)


def _raise_node(node: ir.Node) -> None:
    for output in node.outputs:
        _raise_value(output)
    for attribute in list(node.attributes.values()):
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype in _HALF:
            node.attributes[attribute.name] = ir.AttrTensor(attribute.name, _raised(attribute.as_tensor()))
        elif attribute.name in _TYPE_ATTRIBUTES and attribute.value in _HALF:
            node.attributes[attribute.name] = ir.AttrInt64(attribute.name, ir.DataType.FLOAT.value)


def _raise_value(value: ir.Value) -> None:
    if value.dtype in _HALF:
        value.dtype = ir.DataType.FLOAT
    if value.const_value is not None and value.const_value.dtype in _HALF:
        value.const_value = _raised(value.const_value)


def _raised(tensor: ir.TensorProtocol) -> ir.LazyTensor:
    def convert() -> ir.TensorProtocol:
        return ir.tensor(tensor.numpy().astype(np.float32))

    return ir.LazyTensor(convert, dtype=ir.DataType.FLOAT, shape=ir.Shape(tensor.numpy().shape), name=tensor.name)
