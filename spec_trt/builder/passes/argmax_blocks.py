"""The argmax over the vocabulary, block by block."""

import onnx_ir as ir

from spec_trt.builder.graph_pass import GraphPass
from spec_trt.builder.patterns import int_of, static_shape
from spec_trt.builder.splice import Splice, replace

__all__ = ["ArgMaxBlocks"]

_SMALLEST = 1024


class ArgMaxBlocks(GraphPass):
    """Find the block that holds the maximum, then the maximum in it.

    ONNX Runtime's ArgMax compares one number after another; its ReduceMax uses vector instructions.
    Equal maxima: the first block, and in it the first index, so the lowest token id wins as before.
    """

    def rewrite(self, model: ir.Model) -> bool:
        """Rewrite each ArgMax over the last axis of a large tensor [batch, rows, vocab]."""
        changed = False
        for node in [node for node in model.graph if node.op_type == "ArgMax"]:
            shape = static_shape(node.inputs[0])  # type: ignore[arg-type]
            vocab = shape[-1] or 0 if len(shape) == 3 else 0
            block = _block_size(vocab)
            if block and int_of(node, "axis", 0) in (-1, 2) and _plain(node):
                replace(node.outputs[0], _argmax(Splice(model.graph, node), node.inputs[0], vocab, block))  # type: ignore[arg-type]
                changed = True
        return changed


def _plain(node: ir.Node) -> bool:
    return int_of(node, "keepdims", 1) == 0 and int_of(node, "select_last_index", 0) == 0


def _block_size(vocab: int) -> int:
    """The divisor of `vocab` nearest to its root (numbers of blocks and sizes alike), or 0 if there is no good one."""
    if vocab < _SMALLEST:
        return 0
    root = vocab**0.5
    divisors = [size for size in range(2, vocab) if vocab % size == 0 and root / 8 < size < root * 8]
    return min(divisors, key=lambda size: abs(size - root), default=0)


def _argmax(splice: Splice, logits: ir.Value, vocab: int, block: int) -> ir.Value:
    """From logits [batch, rows, vocab] to token ids [batch, rows] int64."""
    blocks = splice.op("Reshape", logits, splice.integers(0, 0, vocab // block, block))
    maxima = splice.op("ReduceMax", blocks, splice.integers(-1), keepdims=0)
    best_block = splice.op("ArgMax", maxima, axis=-1, keepdims=1)
    inside = splice.op("GatherND", blocks, best_block, batch_dims=2)
    index = splice.op("ArgMax", inside, axis=-1, keepdims=1)
    token = splice.op("Add", splice.op("Mul", best_block, splice.integers(block)), index)
    return splice.op("Squeeze", token, splice.integers(2))
