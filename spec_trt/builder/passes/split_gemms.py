"""Gemm as MatMul and Add, the form every other pass knows."""

import numpy as np
import onnx_ir as ir

from spec_trt.builder.graph_pass import GraphPass
from spec_trt.builder.patterns import float_of, int_of, is_weight, weight
from spec_trt.builder.splice import Splice, replace

__all__ = ["SplitGemms"]


class SplitGemms(GraphPass):
    """Write Gemm(x, weight, bias) as Add(MatMul(x, weight), bias)."""

    def rewrite(self, model: ir.Model) -> bool:
        """Replace each plain Gemm on a constant weight."""
        found = [node for node in model.graph if node.op_type == "Gemm" and _plain(node)]
        for node in found:
            splice = Splice(model.graph, node)
            out = splice.op("MatMul", node.inputs[0], _weight(splice, node))
            if len(node.inputs) > 2 and node.inputs[2] is not None:
                out.shape, out.type = node.outputs[0].shape, node.outputs[0].type
                out = splice.op("Add", out, node.inputs[2])
            replace(node.outputs[0], out)
        return bool(found)


def _plain(node: ir.Node) -> bool:
    unscaled = float_of(node, "alpha", 1.0) == 1.0 and float_of(node, "beta", 1.0) == 1.0
    return unscaled and int_of(node, "transA", 0) == 0 and is_weight(node.inputs[1], 2)


def _weight(splice: Splice, node: ir.Node) -> ir.Value | None:
    if int_of(node, "transB", 0) == 0:
        return node.inputs[1]
    name = f"{node.inputs[1].name}.transposed"  # type: ignore[union-attr]
    return splice.constant(np.ascontiguousarray(weight(node.inputs[1]).T), name)
