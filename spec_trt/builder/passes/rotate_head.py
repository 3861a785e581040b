"""The lm_head's input, and what a draft head is given, rotated so that no channel sticks out.

Ashkboos et al. 2024, "QuaRot: Outlier-Free 4-Bit Inference in Rotated LLMs", arXiv 2404.00456: an
orthogonal matrix between an input and its weight changes nothing but spreads outliers over channels.
"""

from collections import defaultdict
from collections.abc import Sequence

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

    The same for matmuls of the graph's own inputs: a draft head reads what the target's lm_head reads.
    Few rows pass here, once: what would cost too much in every layer costs nothing beside the lm_head.
    """

    def rewrite(self, model: ir.Model) -> bool:
        """Rotate the inputs of the graph's last matmul on a constant matrix and of those on its inputs."""
        groups: dict[ir.Value, list[Linear]] = defaultdict(list)
        linears = find_linears(model.graph)
        for linear in linears:
            if linear is linears[-1] or linear.input.is_graph_input():
                groups[linear.input].append(linear)
        changed = False
        for group in groups.values():
            block = _block_size(group[0].matrix().shape[0])
            if block >= _SMALLEST:
                _rotate(model.graph, group, hadamard(block))
                changed = True
        return changed


def hadamard(size: int) -> np.ndarray:
    """Sylvester's orthogonal matrix, symmetric: [size, size] float32, size a power of two."""
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / np.float32(np.sqrt(size))


def _block_size(inputs: int) -> int:
    """The largest power of two that divides the channels, up to a limit."""
    return min(inputs & -inputs, _LARGEST)


def _rotate(graph: ir.Graph, group: Sequence[Linear], rotation: np.ndarray) -> None:
    """Rotate the common input of some matmuls, and the weight of each."""
    splice, value = Splice(graph, group[0].node), group[0].input
    inputs, block = group[0].matrix().shape[0], len(rotation)
    rows = [0] * (len(static_shape(value)) - 1)  # as they are: [batch, nodes], and a head's
    blocks = splice.op("Reshape", value, splice.integers(*rows, inputs // block, block))
    rotated = splice.op("MatMul", blocks, splice.constant(rotation, f"{ROTATION}.{block}"))
    flat = splice.op("Reshape", rotated, splice.integers(*rows, inputs))
    flat.shape, flat.type = value.shape, value.type
    for linear in group:
        turned = np.matmul(rotation, linear.matrix().reshape(inputs // block, block, -1)).reshape(inputs, -1)
        weight = turned.T if linear.transposed else turned
        linear.node.replace_input_with(0, flat)
        linear.node.replace_input_with(1, splice.constant(np.asarray(weight, order="C"), f"{linear.name}.rotated"))
