"""Transposes of weights, done once here or left to the matmul that reads them."""

import numpy as np
import onnx_ir as ir

from spec_trt.builder.graph_pass import GraphPass
from spec_trt.builder.patterns import consumers, is_weight, producer, weight
from spec_trt.builder.splice import MS_DOMAIN, Splice, replace

__all__ = ["FoldTransposes", "UntransposeSharedWeights"]


class FoldTransposes(GraphPass):
    """Store a weight transposed instead of transposing it in every pass (the tied lm_head)."""

    def rewrite(self, model: ir.Model) -> bool:
        """Replace each `Transpose` of a matrix initializer by a transposed initializer."""
        found = [node for node in model.graph if node.op_type == "Transpose" and is_weight(node.inputs[0], 2)]
        for node in found:
            source = node.inputs[0]
            splice = Splice(model.graph, node)
            value = splice.constant(np.ascontiguousarray(weight(source).T), f"{source.name}.transposed")  # type: ignore[union-attr]
            replace(node.outputs[0], value)
        return bool(found)

    def ensures(self, model: ir.Model) -> None:
        """No weight is transposed while the model runs."""
        for node in model.graph:
            if node.op_type == "Transpose" and is_weight(node.inputs[0], 2):
                raise ir.passes.PostconditionError(f"{node.name} still transposes a weight")


class UntransposeSharedWeights(GraphPass):
    """Let a matmul read a tied embedding as it is, so that the file holds it once.

    `FusedMatMul(transB=1)` packs its constant operand when the session loads, just as `MatMul` does.
    """

    def rewrite(self, model: ir.Model) -> bool:
        """Turn MatMul(x, Transpose(shared weight)) into FusedMatMul(x, shared weight, transB=1)."""
        found = [node for node in model.graph if node.op_type == "MatMul" and _shared(node.inputs[1])]
        for node in found:
            transpose = node.inputs[1].producer()  # type: ignore[union-attr]
            operands = (node.inputs[0], transpose.inputs[0])  # type: ignore[union-attr]
            splice = Splice(model.graph, node)
            replace(node.outputs[0], splice.op("FusedMatMul", *operands, domain=MS_DOMAIN, transB=1))
        return bool(found)


def _shared(value: ir.Value | None) -> bool:
    """Whether `value` transposes a matrix that others read too."""
    node = producer(value, "Transpose")
    if node is None or not is_weight(node.inputs[0], 2):
        return False
    return len(consumers(node.inputs[0])) > 1  # type: ignore[arg-type]
