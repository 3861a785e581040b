"""Rotate queries and keys in one go."""

import onnx_ir as ir

from spec_trt.builder.graph_pass import GraphPass
from spec_trt.builder.patterns import int_of, sole_consumer, static_shape, weight
from spec_trt.builder.splice import Splice, replace

__all__ = ["PackRotary"]


class PackRotary(GraphPass):
    """Apply RotaryEmbedding to q's and k's heads together where both are split off one tensor.

    Split into (q, k, rest), two rotations -> Split into (q and k, rest), one rotation, Split.
    """

    def rewrite(self, model: ir.Model) -> bool:
        """Rewrite every split along the heads whose first two parts are rotated alike."""
        changed = False
        for node in [node for node in model.graph if node.op_type == "Split" and int_of(node, "axis", 0) == 1]:
            rotations = [sole_consumer(output, "RotaryEmbedding") for output in node.outputs[:2]]
            query, key = rotations if len(rotations) == 2 else (None, None)
            if query is not None and key is not None and _alike(query, key):
                _pack(model.graph, node, query, key)
                changed = True
        return changed


def _alike(query: ir.Node, key: ir.Node) -> bool:
    """Whether two rotations have the same angles and settings, and sizes that are known."""
    if list(query.inputs[1:]) != list(key.inputs[1:]):
        return False
    settings = ("interleaved", "rotary_embedding_dim")
    if any(int_of(query, name, 0) != int_of(key, name, 0) for name in settings):
        return False
    return len(static_shape(query.outputs[0])) == 4 == len(static_shape(key.outputs[0]))


def _pack(graph: ir.Graph, node: ir.Node, query: ir.Node, key: ir.Node) -> None:
    splice = Splice(graph, node)
    query_heads, key_heads, *rest = (int(size) for size in weight(node.inputs[1]))
    sizes = splice.integers(query_heads + key_heads, *rest)
    packed, *others = splice.ops("Split", node.inputs[0], sizes, outputs=1 + len(rest), axis=1)
    splice = Splice(graph, query)
    rotated = splice.op(
        "RotaryEmbedding",
        packed,
        *query.inputs[1:],
        num_heads=query_heads + key_heads,
        interleaved=int_of(query, "interleaved", 0),
        rotary_embedding_dim=int_of(query, "rotary_embedding_dim", 0),
    )
    parts = splice.ops("Split", rotated, splice.integers(query_heads, key_heads), outputs=2, axis=1)
    for old, new in zip([query.outputs[0], key.outputs[0], *node.outputs[2:]], [*parts, *others], strict=True):
        replace(old, new)
