"""New nodes and constants put into a graph that already exists."""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

__all__ = ["MS_DOMAIN", "Attribute", "Splice", "remove_unused", "replace"]

MS_DOMAIN = "com.microsoft"

Attribute = int | float | str | Sequence[int] | Sequence[float]


class Splice:
    """Writes nodes in front of one node of a graph, in the order they are asked for.

    Args:
        graph: The graph to extend.
        before: The node that every new node precedes.
    """

    def __init__(self, graph: ir.Graph, before: ir.Node) -> None:
        self._graph = graph
        self._before = before

    def op(self, op_type: str, *inputs: ir.Value | None, domain: str = "", **attributes: Attribute) -> ir.Value:
        """Add a node with one output, and return that output."""
        return self.ops(op_type, *inputs, outputs=1, domain=domain, **attributes)[0]

    def ops(
        self, op_type: str, *inputs: ir.Value | None, outputs: int, domain: str = "", **attributes: Attribute
    ) -> Sequence[ir.Value]:
        """Add a node with several outputs, and return them."""
        node = ir.node(op_type, inputs, attributes, domain=domain, num_outputs=outputs)
        self._graph.insert_before(self._before, node)
        return node.outputs

    def constant(self, array: np.ndarray, name: str) -> ir.Value:
        """Add an initializer; a small equal one of the same name is used again."""
        known = self._graph.initializers.get(name)
        if known is not None and array.size <= 16 and _equal(known, array):
            return known
        unique = name if known is None else _free_name(self._graph, name)
        value = ir.val(unique, const_value=ir.tensor(np.asarray(array, order="C"), name=unique))
        self._graph.register_initializer(value)
        return value

    def integers(self, *numbers: int) -> ir.Value:
        """Add a vector of int64, named after its content."""
        return self.constant(np.array(numbers, np.int64), "int64_" + "_".join(map(str, numbers)))

    def scalar(self, number: float) -> ir.Value:
        """Add a float32 scalar, named after its content."""
        return self.constant(np.array(number, np.float32), f"float32_{number!r}")


def replace(old: ir.Value, new: ir.Value) -> None:
    """Let every user of `old`, the graph's outputs included, read `new`, which takes over its name there."""
    new.shape = new.shape or old.shape
    new.type = new.type or old.type
    name, was_output = old.name, old.is_graph_output()
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    if was_output:
        old.name = f"{name}.replaced"
        new.name = name


def remove_unused(model: ir.Model) -> None:
    """Drop nodes and initializers that nothing reads any more."""
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    RemoveUnusedNodesPass()(model)


def _equal(value: ir.Value, array: np.ndarray) -> bool:
    known = value.const_value
    if known is None or known.dtype != ir.DataType.from_numpy(array.dtype):
        return False
    return np.array_equal(known.numpy(), array) and tuple(known.shape) == array.shape


def _free_name(graph: ir.Graph, name: str) -> str:
    number = 1
    while f"{name}.{number}" in graph.initializers:
        number += 1
    return f"{name}.{number}"
