"""Shapes that are known but for the dimensions that stay, written down instead of put together in every pass."""

import onnx_ir as ir

from spec_trt.builder.graph_pass import GraphPass
from spec_trt.builder.splice import Splice

__all__ = ["ReshapeTargets"]


class ReshapeTargets(GraphPass):
    """Give a Reshape a constant target: 0 copies a leading dimension of the input, such as batch and nodes."""

    def rewrite(self, model: ir.Model) -> bool:
        """Rewrite each Reshape with a computed target, where input and output agree up to the first known size."""
        changed = False
        for node in [node for node in model.graph if node.op_type == "Reshape"]:
            target = node.inputs[1]
            sizes = _sizes(node) if target is not None and target.const_value is None else []
            if sizes:
                node.replace_input_with(1, Splice(model.graph, node).integers(*sizes))
                node.attributes.pop("allowzero", None)
                changed = True
        return changed


def _sizes(node: ir.Node) -> list[int]:
    """The target, empty where a dimension varies and is not the input's own."""
    source, target = (value.shape if value is not None else None for value in (node.inputs[0], node.outputs[0]))
    if source is None or target is None:
        return []
    sizes = []
    for index, size in enumerate(target):
        if isinstance(size, int):
            sizes.append(size)
        elif index < len(source) and size.value is not None and source[index] == size:
            sizes.append(0)
        else:
            return []
    return sizes
