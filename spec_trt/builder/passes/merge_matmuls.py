"""One matmul for the queries, keys and values of a layer."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from spec_trt.builder.graph_pass import GraphPass
from spec_trt.builder.patterns import consumers, is_weight, sole_consumer, weight
from spec_trt.builder.splice import Splice, replace

__all__ = ["MergeMatMuls"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Projection:
    """A matmul on a constant weight, with the bias added to it if there is one."""

    node: ir.Node
    bias: ir.Node | None

    @property
    def output(self) -> ir.Value:
        return (self.bias or self.node).outputs[0]

    @property
    def width(self) -> int:
        return int(weight(self.node.inputs[1]).shape[1])

    def bias_array(self) -> np.ndarray:
        """The bias, zeros where there is none: [width] float32."""
        if self.bias is None:
            return np.zeros(self.width, np.float32)
        return weight(next(value for value in self.bias.inputs if is_weight(value, 1)))


class MergeMatMuls(GraphPass):
    """Concatenate the weights of matmuls that read one input and are cut into heads; split their common output.

    Later passes then move, rotate and split the heads together. Others (gate and up) gain nothing:
    splitting what they make costs more than starting a second matmul.
    """

    def rewrite(self, model: ir.Model) -> bool:
        """Merge every group of two or more."""
        groups: dict[ir.Value, list[_Projection]] = defaultdict(list)
        for node in model.graph:
            if node.op_type == "MatMul" and node.inputs[0] is not None and is_weight(node.inputs[1], 2):
                projection = _Projection(node=node, bias=_bias(node))
                if _cut_into_heads(projection.output):
                    groups[node.inputs[0]].append(projection)
        merged = [group for group in groups.values() if len(group) > 1]
        for group in merged:
            _merge(model.graph, group)
        return bool(merged)


def _bias(node: ir.Node) -> ir.Node | None:
    """The addition of a constant vector that follows a matmul."""
    add = sole_consumer(node.outputs[0], "Add")
    if add is None or not any(is_weight(value, 1) for value in add.inputs):
        return None
    return add


def _cut_into_heads(value: ir.Value) -> bool:
    return any(node.op_type == "Reshape" for node in consumers(value))


def _merge(graph: ir.Graph, group: Sequence[_Projection]) -> None:
    first = group[0].node
    splice = Splice(graph, first)
    weights = np.concatenate([weight(item.node.inputs[1]) for item in group], axis=1)
    name = f"{group[0].node.inputs[1].name}.merged"  # type: ignore[union-attr]
    out = splice.op("MatMul", first.inputs[0], splice.constant(weights, name))
    if any(item.bias is not None for item in group):
        bias = np.concatenate([item.bias_array() for item in group])
        out = splice.op("Add", out, splice.constant(bias, f"{name}.bias"))
    sizes = splice.integers(*(item.width for item in group))
    parts = splice.ops("Split", out, sizes, outputs=len(group), axis=-1)
    for item, part in zip(group, parts, strict=True):
        replace(item.output, part)
