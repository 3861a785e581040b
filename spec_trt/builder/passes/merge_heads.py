"""One matmul for the residual blocks of all Medusa heads."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from spec_trt.builder.graph_pass import GraphPass
from spec_trt.builder.patterns import int_of, is_weight, producer, weight
from spec_trt.builder.splice import MS_DOMAIN, Splice, replace

__all__ = ["MergeHeads"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """x + SiLU(x @ weight + bias): [batch, rows, hidden] -> the same shape."""

    input: ir.Value
    weight: ir.Value
    bias: ir.Value


class MergeHeads(GraphPass):
    """Compute every head's block at once where heads of one block are stacked.

    Per head a MatMul, Add, SiLU, Add and Unsqueeze, then a Concat -> one of each and a Reshape.
    Heads of several blocks, and heads with projections of their own, stay as they are.
    """

    def rewrite(self, model: ir.Model) -> bool:
        """Rewrite every Concat of the blocks' outputs along a new axis: [batch, rows, heads, hidden]."""
        changed = False
        for node in [node for node in model.graph if node.op_type == "Concat"]:
            found = [_block(value) for value in node.inputs]
            blocks = [block for block in found if block is not None]
            if len(blocks) == len(found) > 1 and int_of(node, "axis", 0) in (-2, 2) and _alike(blocks):
                replace(node.outputs[0], _merged(Splice(model.graph, node), blocks))
                changed = True
        return changed


def _block(value: ir.Value | None) -> _Block | None:
    """The block whose output `value` is, with an axis of heads put in."""
    unsqueeze = producer(value, "Unsqueeze")
    if unsqueeze is None or not _second_last(unsqueeze.inputs[1]):
        return None
    residual = producer(unsqueeze.inputs[0], "Add")
    for source, other in [residual.inputs, residual.inputs[::-1]] if residual is not None else []:
        block = _after_silu(source, other)
        if block is not None:
            return block
    return None


def _second_last(axes: ir.Value | None) -> bool:
    return axes is not None and axes.const_value is not None and axes.const_value.numpy().tolist() in ([-2], [2])


def _after_silu(source: ir.Value | None, other: ir.Value | None) -> _Block | None:
    silu = producer(other, "QuickGelu", MS_DOMAIN)
    add = producer(silu.inputs[0], "Add") if silu is not None else None
    matmul = producer(add.inputs[0], "MatMul") if add is not None else None
    if source is None or add is None or matmul is None or matmul.inputs[0] is not source:
        return None
    matrix, bias = matmul.inputs[1], add.inputs[1]
    if matrix is None or bias is None or not is_weight(matrix, 2) or not is_weight(bias, 1):
        return None
    return _Block(input=source, weight=matrix, bias=bias)


def _alike(blocks: Sequence[_Block]) -> bool:
    return len({block.input for block in blocks}) == 1


def _merged(splice: Splice, blocks: Sequence[_Block]) -> ir.Value:
    """All blocks of one input [batch, rows, hidden]: [batch, rows, heads, hidden]."""
    matrix = np.concatenate([weight(block.weight) for block in blocks], axis=1)
    bias = np.concatenate([weight(block.bias) for block in blocks])
    source, name = blocks[0].input, f"{blocks[0].weight.name}.merged"
    product = splice.op("MatMul", source, splice.constant(matrix, name))
    silu = splice.op(
        "QuickGelu", splice.op("Add", product, splice.constant(bias, f"{name}.bias")), domain=MS_DOMAIN, alpha=1.0
    )
    hidden = len(bias) // len(blocks)
    per_head = splice.op("Reshape", silu, splice.integers(0, 0, len(blocks), hidden))
    return splice.op("Add", splice.op("Unsqueeze", source, splice.integers(2)), per_head)
