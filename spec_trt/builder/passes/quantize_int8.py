"""int8 x int8 matmuls: weights per output channel, activations per row."""

import numpy as np
import onnx_ir as ir

from spec_trt.builder.graph_pass import GraphPass
from spec_trt.builder.linear import Linear, find_linears
from spec_trt.builder.splice import MS_DOMAIN, Splice, replace

__all__ = ["QuantizeInt8", "quantize_columns"]

_LEVELS = 127
_ZERO_POINT = 128


class QuantizeInt8(GraphPass):
    """Multiply 8-bit integers, exactly accumulated, wherever a weight is constant.

    A row x becomes round(127 x / absmax(x)) + 128 in uint8, a column w of the weight
    round(127 w / absmax(w)) in int8. No scale depends on another row, so a token's numbers do not
    depend on what shares its pass. Matmuls that read the same tensor share its quantization. A row
    of zeros divides 0 by 0; its own scale of 0 turns whatever comes of that into zeros.
    """

    def rewrite(self, model: ir.Model) -> bool:
        """Replace every matmul on a constant matrix."""
        rows: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
        linears = find_linears(model.graph)
        for linear in linears:
            splice = Splice(model.graph, linear.node)
            if linear.input not in rows:
                rows[linear.input] = _quantize_rows(splice, linear.input)
            replace(linear.node.outputs[0], _multiply(splice, linear, *rows[linear.input]))
        return bool(linears)

    def ensures(self, model: ir.Model) -> None:
        """Every eligible weight is an integer one, the lm_head included."""
        left = find_linears(model.graph)
        if left:
            raise ir.passes.PostconditionError(f"{left[0].name} is not quantized")


def quantize_columns(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Round each column to int8 symmetrically.

    Args:
        matrix: [inputs, outputs] float32.

    Returns:
        [inputs, outputs] int8, and the columns' scales [outputs] float32.
    """
    scales = np.abs(matrix).max(axis=0) / _LEVELS
    scales[scales == 0] = 1.0
    return np.rint(matrix / scales).astype(np.int8), scales.astype(np.float32)


def _quantize_rows(splice: Splice, value: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Write value [..., inputs] float32 -> uint8 of the same shape, and absmax [..., 1] float32."""
    absmax = splice.op("ReduceMax", splice.op("Abs", value), splice.integers(-1), keepdims=1)
    unit = splice.op("Div", value, absmax)
    return splice.op("QuantizeLinear", unit, splice.scalar(1 / _LEVELS), _zero_point(splice)), absmax


def _multiply(splice: Splice, linear: Linear, rows: ir.Value, absmax: ir.Value) -> ir.Value:
    """Write the integer product, scaled per row and column back to float32."""
    matrix, scales = quantize_columns(linear.matrix())
    operands = (
        rows,
        splice.constant(matrix, f"{linear.name}.int8"),
        absmax,
        splice.constant(scales / np.float32(_LEVELS), f"{linear.name}.scales"),
        _zero_point(splice),
    )
    return splice.op("MatMulIntegerToFloat", *operands, domain=MS_DOMAIN)


def _zero_point(splice: Splice) -> ir.Value:
    return splice.constant(np.array(_ZERO_POINT, np.uint8), f"uint8_{_ZERO_POINT}")
