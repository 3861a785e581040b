"""What a draft computes from its token alone, looked up instead of computed."""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from spec_trt.builder.graph_pass import GraphPass
from spec_trt.builder.patterns import consumers, float_of, int_of, is_weight, sole_consumer, static_shape, weight
from spec_trt.builder.splice import Splice, replace

__all__ = ["FoldEmbedding"]

_WIDEST = 2  # times the embedding's width: how wide a row of the new table may be


class FoldEmbedding(GraphPass):
    """Store the embedding behind the norm and the part of a matmul that read it and nothing else.

    An EAGLE draft multiplies embedding and feature side by side. The embedding's half of the product
    depends on the token alone: a row of a table, and the matmul is left with the feature. This also
    lets quantization choose the feature's scale for the feature: beside it, an embedding is so small
    that it would round to nearly nothing.
    """

    def rewrite(self, model: ir.Model) -> bool:
        """Fold what follows each lookup of a row of a constant table, as far as it goes."""
        changed = False
        for node in [node for node in model.graph if node.op_type == "Gather"]:
            if is_weight(node.inputs[0], 2) and int_of(node, "axis", 0) == 0 and not node.outputs[0].is_graph_output():
                changed |= _fold_norm(model.graph, node)
                changed |= _fold_matmul(model.graph, node)
        return changed


def _fold_norm(graph: ir.Graph, gather: ir.Node) -> bool:
    norm = sole_consumer(gather.outputs[0], "RMSNormalization")
    if norm is None or not is_weight(norm.inputs[1], 1) or int_of(norm, "axis", -1) not in (-1, 2):
        return False
    if len(consumers(gather.inputs[0])) > 1:  # type: ignore[arg-type]
        return False  # a tied lm_head reads the table too: a second one would cost more than the norm
    table = weight(gather.inputs[0])
    variance = np.square(table).mean(axis=1, keepdims=True) + np.float32(float_of(norm, "epsilon", 1e-5))
    _set_table(graph, gather, table / np.sqrt(variance) * weight(norm.inputs[1]), "normed")
    replace(norm.outputs[0], gather.outputs[0])
    graph.remove(norm, safe=True)  # else it still counts as a reader
    return True


def _fold_matmul(graph: ir.Graph, gather: ir.Node) -> bool:
    """Turn MatMul(Concat(embedding, features), weight) into Add(embedding of the product, MatMul(features, rest))."""
    concat = sole_consumer(gather.outputs[0], "Concat")
    matmul = sole_consumer(concat.outputs[0], "MatMul") if concat is not None else None
    if concat is None or matmul is None or len(concat.inputs) != 2 or not is_weight(matmul.inputs[1], 2):
        return False
    table, matrix = weight(gather.inputs[0]), weight(matmul.inputs[1])
    rows = _rows(concat, gather.outputs[0], len(matrix))
    if len(rows) != table.shape[1] or int_of(concat, "axis", 0) not in (-1, 2):
        return False
    if matrix.shape[1] > _WIDEST * table.shape[1]:
        return False
    (features,) = (value for value in concat.inputs if value is not gather.outputs[0])
    own, rest = matrix[rows], np.delete(matrix, rows, axis=0)
    bias = _bias(matmul)
    product = table @ own if bias is None else table @ own + weight(bias.inputs[1])
    _set_table(graph, gather, product, "multiplied")
    out = (bias or matmul).outputs[0]
    gather.outputs[0].shape = out.shape
    splice = Splice(graph, matmul)
    other = splice.op("MatMul", features, splice.constant(rest, f"{matmul.inputs[1].name}.features"))  # type: ignore[union-attr]
    other.shape, other.type = out.shape, out.type
    replace(out, splice.op("Add", other, gather.outputs[0]))
    return True


def _bias(matmul: ir.Node) -> ir.Node | None:
    """The addition of a constant vector that follows."""
    add = sole_consumer(matmul.outputs[0], "Add")
    return add if add is not None and is_weight(add.inputs[1], 1) else None


def _rows(concat: ir.Node, part: ir.Value, total: int) -> Sequence[int]:
    """Which rows of a weight [total, outputs] one of two concatenated parts multiplies; none where its size varies."""
    width = (static_shape(part) or [None])[-1] or 0
    return range(width) if concat.inputs[0] is part else range(total - width, total)


def _set_table(graph: ir.Graph, gather: ir.Node, table: np.ndarray, suffix: str) -> None:
    name = f"{gather.inputs[0].name}.{suffix}"  # type: ignore[union-attr]
    gather.replace_input_with(0, Splice(graph, gather).constant(table.astype(np.float32), name))
