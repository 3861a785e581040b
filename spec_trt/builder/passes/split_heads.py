"""Cut a merged projection into heads first, and into q, k and v after."""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from spec_trt.builder.graph_pass import GraphPass
from spec_trt.builder.patterns import float_of, int_of, sole_consumer, static_shape
from spec_trt.builder.splice import Splice, replace

__all__ = ["SplitHeads"]

_HEADS_FIRST = [0, 2, 1, 3]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One output of the split: its heads' shape, its norm over head_dim if any, its transpose."""

    heads: int
    head_dim: int
    norm: ir.Node | None
    transpose: ir.Node


class SplitHeads(GraphPass):
    """Turn Split, then per part Reshape and Transpose, into Reshape, Transpose, Split.

    A norm over head_dim between the two (q_norm, k_norm) moves behind the split.
    """

    def rewrite(self, model: ir.Model) -> bool:
        """Rewrite every split along the last axis whose parts are all cut into heads."""
        changed = False
        for node in [node for node in model.graph if node.op_type == "Split" and int_of(node, "axis", 0) in (-1, 2)]:
            parts = [_part(output) for output in node.outputs]
            found = [part for part in parts if part is not None]
            if len(found) == len(parts) and len({part.head_dim for part in found}) == 1:
                _rewrite(model.graph, node, found)
                changed = True
        return changed


def _part(value: ir.Value) -> _Part | None:
    reshape = sole_consumer(value, "Reshape")
    if reshape is None:
        return None
    cut = reshape.outputs[0]
    norm = sole_consumer(cut, "RMSNormalization")
    if norm is not None and int_of(norm, "axis", -1) not in (-1, 3):
        return None
    transpose = sole_consumer(norm.outputs[0] if norm else cut, "Transpose")
    shape = static_shape(cut)
    if transpose is None or len(shape) != 4 or shape[2] is None or shape[3] is None:
        return None
    if list(transpose.attributes["perm"].as_ints()) != _HEADS_FIRST:
        return None
    return _Part(heads=shape[2], head_dim=shape[3], norm=norm, transpose=transpose)


def _rewrite(graph: ir.Graph, node: ir.Node, parts: Sequence[_Part]) -> None:
    splice = Splice(graph, node)
    total = sum(part.heads for part in parts)
    cut = splice.op("Reshape", node.inputs[0], splice.integers(0, 0, total, parts[0].head_dim))
    heads_first = splice.op("Transpose", cut, perm=_HEADS_FIRST)
    sizes = splice.integers(*(part.heads for part in parts))
    outputs = splice.ops("Split", heads_first, sizes, outputs=len(parts), axis=1)
    for part, output in zip(parts, outputs, strict=True):
        replace(part.transpose.outputs[0], _normed(splice, part, output))


def _normed(splice: Splice, part: _Part, value: ir.Value) -> ir.Value:
    if part.norm is None:
        return value
    epsilon = float_of(part.norm, "epsilon", 1e-5)
    return splice.op("RMSNormalization", value, part.norm.inputs[1], axis=-1, epsilon=epsilon)
