"""8-bit rows of embeddings, for their size: a draft reads a few of them, but keeps them all."""

import numpy as np
import onnx_ir as ir

from spec_trt.builder.graph_pass import GraphPass
from spec_trt.builder.patterns import int_of, is_weight, static_shape, weight
from spec_trt.builder.splice import MS_DOMAIN, Splice, replace

__all__ = ["QuantizeTables", "quantize_rows"]

_LEVELS = 127
_ZERO_POINT = 128


class QuantizeTables(GraphPass):
    """Turn lookups of rows of a constant table into `GatherBlockQuantized`.

    Args:
        block: Neighbours in a row that share a scale; tables of other widths stay as they are.
    """

    def __init__(self, block: int = 32) -> None:
        super().__init__()
        self._block = block

    def rewrite(self, model: ir.Model) -> bool:
        """Replace every Gather of rows of a float32 matrix."""
        changed = False
        for node in [node for node in model.graph if node.op_type == "Gather"]:
            table = node.inputs[0]
            if is_weight(table, 2) and int_of(node, "axis", 0) == 0 and not static_shape(table)[1] % self._block:  # type: ignore[arg-type, operator]
                replace(node.outputs[0], self._look_up(Splice(model.graph, node), node))
                changed = True
        return changed

    def _look_up(self, splice: Splice, node: ir.Node) -> ir.Value:
        numbers, scales = quantize_rows(weight(node.inputs[0]), self._block)
        name = node.inputs[0].name  # type: ignore[union-attr]
        return splice.op(
            "GatherBlockQuantized",
            splice.constant(numbers, f"{name}.uint8"),
            node.inputs[1],
            splice.constant(scales, f"{name}.scales"),
            domain=MS_DOMAIN,
            bits=8,
            block_size=self._block,
            gather_axis=0,
            quantize_axis=1,
        )


def quantize_rows(table: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Round blocks of each row to 8 bits symmetrically.

    Args:
        table: [rows, width] float32.
        block: Divides the width.

    Returns:
        [rows, width] uint8 with zero point 128, and the scales [rows, width / block] float32.
    """
    blocks = table.reshape(len(table), -1, block)
    scales = np.abs(blocks).max(axis=2) / np.float32(_LEVELS)
    scales[scales == 0] = 1.0
    numbers = np.rint(blocks / scales[..., None]) + _ZERO_POINT
    return numbers.astype(np.uint8).reshape(table.shape), scales
