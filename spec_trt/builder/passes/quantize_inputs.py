"""8-bit matmuls on several features side by side, which differ by orders of magnitude."""

import numpy as np
import onnx_ir as ir

from spec_trt.builder.graph_pass import GraphPass
from spec_trt.builder.linear import Linear, find_linears
from spec_trt.builder.passes.quantize_tables import quantize_rows
from spec_trt.builder.splice import MS_DOMAIN, Splice, replace

__all__ = ["QuantizeInputs"]

_ACCURACY_LEVEL = 4  # activations to int8 too, per row and block: a row's numbers depend on no other row


class QuantizeInputs(GraphPass):
    """Multiply a graph's own input in blocks of channels, each with a scale of its own.

    EAGLE-3's fusion reads hidden states of an early, a middle and a late layer; with one scale for all
    of them the early one would round to nearly nothing. `MatMulNBits` quantizes and multiplies in one
    kernel: good for the few rows that are fused, slower than `MatMulInteger` for many.

    Args:
        block: Inputs that share a scale; a power of two, at least 16.
    """

    def __init__(self, block: int = 32) -> None:
        super().__init__()
        self._block = block

    def rewrite(self, model: ir.Model) -> bool:
        """Replace every matmul of an input of the graph by a constant matrix."""
        found = [linear for linear in find_linears(model.graph) if linear.input.is_graph_input()]
        for linear in found:
            replace(linear.node.outputs[0], self._multiply(Splice(model.graph, linear.node), linear))
        return bool(found)

    def _multiply(self, splice: Splice, linear: Linear) -> ir.Value:
        matrix = linear.matrix()
        inputs, outputs = matrix.shape
        count = -(-inputs // self._block)
        padded = np.zeros((outputs, count * self._block), np.float32)
        padded[:, :inputs] = matrix.T
        numbers, scales = quantize_rows(padded, self._block)
        return splice.op(
            "MatMulNBits",
            linear.input,
            splice.constant(numbers.reshape(outputs, count, self._block), f"{linear.name}.uint8"),
            splice.constant(scales, f"{linear.name}.scales"),
            domain=MS_DOMAIN,
            K=inputs,
            N=outputs,
            bits=8,
            block_size=self._block,
            accuracy_level=_ACCURACY_LEVEL,
        )
