"""SiLU as one kernel."""

import onnx_ir as ir

from spec_trt.builder.graph_pass import GraphPass
from spec_trt.builder.patterns import sole_consumer
from spec_trt.builder.splice import MS_DOMAIN, Splice, replace

__all__ = ["FuseSilu"]


class FuseSilu(GraphPass):
    """Turn Mul(x, Sigmoid(x)) into QuickGelu(x) with alpha 1."""

    def rewrite(self, model: ir.Model) -> bool:
        """Fuse every sigmoid whose only reader multiplies it with its own argument."""
        changed = False
        for node in [node for node in model.graph if node.op_type == "Sigmoid"]:
            product = sole_consumer(node.outputs[0], "Mul")
            if product is not None and node.inputs[0] in product.inputs:
                splice = Splice(model.graph, product)
                replace(product.outputs[0], splice.op("QuickGelu", node.inputs[0], domain=MS_DOMAIN, alpha=1.0))
                changed = True
        return changed
