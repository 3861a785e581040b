"""Questions about a graph's nodes and values that several passes ask."""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

__all__ = [
    "consumers",
    "float_of",
    "int_of",
    "is_weight",
    "producer",
    "same_shape",
    "sole_consumer",
    "static_shape",
    "weight",
]


def producer(value: ir.Value | None, op_type: str, domain: str = "") -> ir.Node | None:
    """The node that makes `value`, if it is of this kind."""
    node = value.producer() if value is not None else None
    return node if node is not None and (node.op_type, node.domain) == (op_type, domain) else None


def consumers(value: ir.Value) -> Sequence[ir.Node]:
    """The nodes that read `value`, each once."""
    return list(dict.fromkeys(use.node for use in value.uses()))


def sole_consumer(value: ir.Value, op_type: str, domain: str = "") -> ir.Node | None:
    """The only reader of `value`, if it is of this kind and `value` is no output of the graph."""
    nodes = consumers(value)
    if value.is_graph_output() or len(nodes) != 1:
        return None
    return nodes[0] if (nodes[0].op_type, nodes[0].domain) == (op_type, domain) else None


def is_weight(value: ir.Value | None, rank: int) -> bool:
    """Whether `value` is a float32 initializer with this many dimensions."""
    if value is None or value.const_value is None or not value.is_initializer():
        return False
    return value.const_value.dtype == ir.DataType.FLOAT and len(value.const_value.shape) == rank


def weight(value: ir.Value | None) -> np.ndarray:
    """The array of an initializer.

    Raises:
        ValueError: `value` is none.
    """
    if value is None or value.const_value is None:
        raise ValueError(f"{value} is not an initializer")
    return value.const_value.numpy()


def static_shape(value: ir.Value) -> list[int | None]:
    """The known dimensions of `value`, None for each that varies; empty when nothing is known."""
    if value.shape is None:
        return []
    return [dim if isinstance(dim, int) else None for dim in value.shape]


def same_shape(left: ir.Value, right: ir.Value, rank: int) -> bool:
    """Whether two values certainly have one shape, of this many dimensions."""
    if left.shape is None or right.shape is None or left.shape.rank() != rank:
        return False
    return list(left.shape) == list(right.shape)


def int_of(node: ir.Node, name: str, default: int) -> int:
    """An integer attribute, or its default."""
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_int()


def float_of(node: ir.Node, name: str, default: float) -> float:
    """A float attribute, or its default."""
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_float()
