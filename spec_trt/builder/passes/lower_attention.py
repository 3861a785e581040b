"""`TreeAttention` in ONNX Runtime's kernels, over two segments of keys and without a copy of the cache."""

import onnx_ir as ir

from spec_trt import names
from spec_trt.builder.attention_bias import BiasKey, TreeMask, tree_mask
from spec_trt.builder.graph_pass import GraphPass
from spec_trt.builder.patterns import float_of, int_of, static_shape
from spec_trt.builder.splice import MS_DOMAIN, Splice, replace

__all__ = ["LowerAttention"]


class LowerAttention(GraphPass):
    """Write each `TreeAttention` as two score products, one softmax and two value products.

    The query heads that share a key head are folded into the rows: [batch, kv_heads, group * nodes,
    head_dim]. ONNX Runtime multiplies a single row with another kernel, so where group is 1 a row
    of zeros is added: one pass's numbers then never depend on how many nodes share it.

    Buffer rows that the mask hides take part with weight 0: they must hold finite numbers.
    """

    def requires(self, model: ir.Model) -> None:
        """The heads and head_dim of queries and keys are known."""
        for node in _found(model):
            for value in node.inputs[:4]:
                if value is None or len(static_shape(value)) != 4 or None in static_shape(value)[1:4:2]:
                    raise ir.passes.PreconditionError(f"{node.name}: heads and head_dim of {value} must be known")

    def rewrite(self, model: ir.Model) -> bool:
        """Lower every `TreeAttention` node; layers with the same mask share it."""
        masks: dict[BiasKey, TreeMask] = {}
        nodes = _found(model)
        for node in nodes:
            key = _bias_key(node)
            if key not in masks:
                masks[key] = tree_mask(Splice(model.graph, node), key, _input(node, 3))
            replace(node.outputs[0], _lower(Splice(model.graph, node), node, masks[key], key.group))
        return bool(nodes)

    def ensures(self, model: ir.Model) -> None:
        """No node of the op is left: ONNX Runtime does not know it."""
        if _found(model):
            raise ir.passes.PostconditionError("a TreeAttention node is left")


def _found(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if (node.domain, node.op_type) == (names.OP_DOMAIN, names.OP_NAME)]


def _input(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    if value is None:
        raise ir.passes.PreconditionError(f"{node.name} has no input {index}")
    return value


def _heads(value: ir.Value) -> int:
    return int(static_shape(value)[1] or 0)


def _bias_key(node: ir.Node) -> BiasKey:
    sliding_window = int_of(node, "sliding_window", 0)
    return BiasKey(
        past_lens=_input(node, 5),
        tree_mask=_input(node, 6),
        positions=_input(node, 7) if sliding_window else None,
        group=_heads(_input(node, 0)) // _heads(_input(node, 1)),
        sliding_window=sliding_window,
    )


def _lower(splice: Splice, node: ir.Node, mask: TreeMask, group: int) -> ir.Value:
    """Write one layer: query [batch, heads, nodes, head_dim] -> the same shape."""
    query, key, value, past_key, past_value = (_input(node, index) for index in range(5))
    heads, kv_heads, head_dim = _heads(query), _heads(key), static_shape(query)[3] or 0
    rows = splice.op("Reshape", query, splice.integers(0, kv_heads, -1, head_dim)) if group > 1 else query
    if group == 1:
        rows = splice.op("Pad", rows, splice.integers(0, 0, 0, 0, 0, 0, 1, 0))
    scores = splice.op("Add", _scores(splice, node, rows, past_key, key), mask.bias)
    weights = splice.op("Softmax", scores, axis=-1)
    past_weights, new_weights = splice.ops("Split", weights, mask.segments, outputs=2, axis=-1)
    # The weighted sum over both segments of values: [batch, kv_heads, rows, head_dim].
    mixed = (splice.op("MatMul", past_weights, past_value), splice.op("MatMul", new_weights, value))
    out = splice.op("Add", *mixed)
    if group == 1:
        return splice.op("Slice", out, splice.integers(0), splice.integers(-1), splice.integers(2))
    return splice.op("Reshape", out, splice.integers(0, heads, -1, static_shape(value)[3] or 0))


def _scores(splice: Splice, node: ir.Node, rows: ir.Value, past_key: ir.Value, key: ir.Value) -> ir.Value:
    """Scaled (and capped) products with both segments of keys: [batch, kv_heads, rows, past + nodes]."""
    softcap = float_of(node, "softcap", 0.0)
    scale = float_of(node, "scale", 1.0) / (softcap or 1.0)
    past, new = (
        splice.op("FusedMatMul", rows, segment, domain=MS_DOMAIN, transB=1, alpha=scale) for segment in (past_key, key)
    )
    scores = splice.op("Concat", past, new, axis=-1)
    if softcap:
        scores = splice.op("Mul", splice.op("Tanh", scores), splice.scalar(softcap))
    return scores
