"""The matmuls on constant weights, which quantization and smoothing work on."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from spec_trt.builder.patterns import consumers, int_of, is_weight, weight
from spec_trt.builder.splice import MS_DOMAIN

__all__ = ["ROTATION", "Linear", "find_linears"]

ROTATION = "rotation"  # begins the names of constants that `RotateHead` multiplies by: no weights of the model

_ROUTING = ("Softmax", "TopK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """One matmul on a constant matrix.

    Attributes:
        node: A `MatMul`, or a `FusedMatMul` that reads a tied embedding transposed.
        transposed: Whether the stored matrix is [outputs, inputs].
    """

    node: ir.Node
    transposed: bool

    @property
    def input(self) -> ir.Value:
        """[..., inputs] float32: another one once the matmul that makes it is replaced."""
        value = self.node.inputs[0]
        if value is None:
            raise ValueError(f"{self.node.name} has no input")
        return value

    def matrix(self) -> np.ndarray:
        """The weight, as [inputs, outputs] float32."""
        array = weight(self.node.inputs[1])
        return array.T if self.transposed else array

    @property
    def name(self) -> str:
        """The weight's name."""
        return str(self.node.inputs[1].name)  # type: ignore[union-attr]


def find_linears(graph: ir.Graph) -> list[Linear]:
    """List the graph's matmuls on constant float32 matrices, in order.

    A mixture's router is left out: its small differences decide which experts run.
    """
    found = []
    for node in graph:
        if _is_linear(node) and not _routes(node) and not _rotates(node):
            found.append(Linear(node=node, transposed=node.op_type == "FusedMatMul"))
    return found


def _is_linear(node: ir.Node) -> bool:
    if (node.op_type, node.domain) == ("FusedMatMul", MS_DOMAIN):
        plain = int_of(node, "transA", 0) == 0 and int_of(node, "transB", 0) == 1 and "alpha" not in node.attributes
        return plain and is_weight(node.inputs[1], 2)
    return (node.op_type, node.domain) == ("MatMul", "") and is_weight(node.inputs[1], 2)


def _routes(node: ir.Node) -> bool:
    return any(reader.op_type in _ROUTING for reader in consumers(node.outputs[0]))


def _rotates(node: ir.Node) -> bool:
    return str(node.inputs[1].name).startswith(f"{ROTATION}.")  # type: ignore[union-attr]
