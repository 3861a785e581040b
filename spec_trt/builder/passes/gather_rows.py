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
            if column is not None and node.attributes["axis"].as_int() == 1 and _last_axis(column):
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
