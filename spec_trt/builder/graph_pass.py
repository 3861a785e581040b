"""What every rewrite of the graph is."""

import abc

import onnx_ir as ir

from spec_trt.builder.splice import remove_unused

__all__ = ["GraphPass"]


class GraphPass(ir.passes.InPlacePass):
    """One named rewrite: the graph computes the same before and after (up to the pass's precision).

    A pass that does not find its pattern leaves the graph alone. `requires` and `ensures` of
    onnx-ir's passes check what must hold before and after.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Apply `rewrite`, and drop what it left unused."""
        modified = self.rewrite(model)
        if modified:
            remove_unused(model)
        return ir.passes.PassResult(model, modified=modified)

    @abc.abstractmethod
    def rewrite(self, model: ir.Model) -> bool:
        """Change `model`, and say whether anything changed."""
