"""The rows that are projected to logits, copied row by row."""

import onnx_ir as ir

from spec_trt.builder.graph_pass import GraphPass
from spec_trt.builder.patterns import producer
from spec_trt.builder.splice import Splice, replace

__all__ = ["GatherRows"]


class GatherRows(GraphPass):
    """Turn GatherElements over indices repeated along the last axis into GatherND over rows.

    hidden_states [batch, nodes, hidden], logits_rows [batch, rows] -> [batch, rows, hidden].
    """

    def rewrite(self, model: ir.Model) -> bool:
        """Rewrite GatherElements(x, Expand(Unsqueeze(rows, -1), ...), axis=1)."""
        changed = False
        for node in [node for node in model.graph if node.op_type == "GatherElements"]:
            expand = producer(node.inputs[1], "Expand")
            column = producer(expand.inputs[0], "Unsqueeze") if expand is not None else None
            along_rows = node.attributes["axis"].as_int() == 1
            if along_rows and expand is not None and column is not None and _last_axis(column) and _only_widens(expand):
                splice = Splice(model.graph, node)
                replace(node.outputs[0], splice.op("GatherND", node.inputs[0], column.outputs[0], batch_dims=1))
                changed = True
        return changed


def _last_axis(unsqueeze: ir.Node) -> bool:
    """Whether a vector of rows per batch entry became a column."""
    axes = unsqueeze.inputs[1]
    if axes is None or axes.const_value is None:
        return False
    return axes.const_value.numpy().tolist() in ([-1], [2])


def _only_widens(expand: ir.Node) -> bool:
    """Whether the column is repeated along the last axis and no other."""
    shape = expand.inputs[1]
    if shape is None or shape.const_value is None:
        return False
    return list(shape.const_value.numpy()[:-1]) == [1, 1]
