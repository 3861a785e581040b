"""The lm_head's input, rotated so that no channel sticks out.

Ashkboos et al. 2024, "QuaRot: Outlier-Free 4-Bit Inference in Rotated LLMs", arXiv 2404.00456: an
orthogonal matrix between an input and its weight changes nothing but spreads outliers over channels.
"""

import numpy as np
import onnx_ir as ir

from spec_trt.builder.graph_pass import GraphPass
from spec_trt.builder.linear import ROTATION, Linear, find_linears
from spec_trt.builder.patterns import static_shape
from spec_trt.builder.splice import Splice

__all__ = ["RotateHead", "hadamard"]

_LARGEST = 64
_SMALLEST = 16


class RotateHead(GraphPass):
    """Multiply the last matmul's input, cut into blocks of channels, by a Hadamard matrix; its weight too.

    Few rows pass here, once: what would cost too much in every layer costs nothing beside the lm_head.
    """

    def rewrite(self, model: ir.Model) -> bool:
        """Rotate the input of the graph's last matmul on a constant matrix."""
        linears = find_linears(model.graph)
        block = _block_size(linears[-1].matrix().shape[0]) if linears else 0
        if block < _SMALLEST:
            return False
        _rotate(model.graph, linears[-1], hadamard(block))
        return True


def hadamard(size: int) -> np.ndarray:
    """Sylvester's orthogonal matrix, symmetric: [size, size] float32, size a power of two."""
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / np.float32(np.sqrt(size))


def _block_size(inputs: int) -> int:
    """The largest power of two that divides the channels, up to a limit."""
    return min(inputs & -inputs, _LARGEST)


def _rotate(graph: ir.Graph, linear: Linear, rotation: np.ndarray) -> None:
    splice = Splice(graph, linear.node)
    matrix, block = linear.matrix(), len(rotation)
    count = len(matrix) // block
    rows = [0] * (len(static_shape(linear.input)) - 1)  # as they are: [batch, nodes], and a head's
    blocks = splice.op("Reshape", linear.input, splice.integers(*rows, count, block))
    rotated = splice.op("MatMul", blocks, splice.constant(rotation, f"{ROTATION}.{block}"))
    flat = splice.op("Reshape", rotated, splice.integers(*rows, len(matrix)))
    flat.shape, flat.type = linear.input.shape, linear.input.type
    turned = np.matmul(rotation, matrix.reshape(count, block, -1)).reshape(matrix.shape)
    linear.node.replace_input_with(0, flat)
    weight = turned.T if linear.transposed else turned
    linear.node.replace_input_with(1, splice.constant(np.asarray(weight, order="C"), f"{linear.name}.rotated"))
