"""A residual addition and the norm that follows it, as one kernel."""

import onnx_ir as ir

from spec_trt.builder.graph_pass import GraphPass
from spec_trt.builder.patterns import float_of, int_of, producer, same_shape
from spec_trt.builder.splice import MS_DOMAIN, Splice, replace

__all__ = ["FuseNorms"]

_FUSED = {"RMSNormalization": "SkipSimplifiedLayerNormalization", "LayerNormalization": "SkipLayerNormalization"}


class FuseNorms(GraphPass):
    """Turn Add then RMSNormalization or LayerNormalization into ONNX Runtime's skip form.

    The sum itself stays available as the kernel's fourth output.
    """

    def rewrite(self, model: ir.Model) -> bool:
        """Fuse every norm over the last axis of a sum of two tensors [batch, nodes, hidden]."""
        changed = False
        for node in [node for node in model.graph if node.op_type in _FUSED and node.domain == ""]:
            add = producer(node.inputs[0], "Add")
            if add is not None and int_of(node, "axis", -1) in (-1, 2) and _residual(add):
                _fuse(model.graph, node, add)
                changed = True
        return changed


def _residual(add: ir.Node) -> bool:
    left, right = add.inputs
    if left is None or right is None or left.is_initializer() or right.is_initializer():
        return False
    return same_shape(left, right, 3)


def _fuse(graph: ir.Graph, node: ir.Node, add: ir.Node) -> None:
    normed, mean, deviation, total = Splice(graph, add).ops(
        _FUSED[node.op_type],
        *add.inputs,
        *node.inputs[1:],
        outputs=4,
        domain=MS_DOMAIN,
        epsilon=float_of(node, "epsilon", 1e-5),
    )
    mean.name = deviation.name = ""  # outputs that are not asked for
    replace(node.outputs[0], normed)
    replace(add.outputs[0], total)
