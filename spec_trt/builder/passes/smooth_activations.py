"""SmoothQuant: outliers of activations moved into weights, where per-channel scales absorb them.

Xiao et al. 2022, "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language
Models", arXiv 2211.10438, section 4: channel j of an input is divided by
s_j = max|x_j|^alpha / max|w_j|^(1 - alpha) and row j of its weight multiplied by it.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from spec_trt.builder.graph_pass import GraphPass
from spec_trt.builder.linear import Linear, find_linears
from spec_trt.builder.patterns import consumers, is_weight, producer, static_shape, weight
from spec_trt.builder.splice import Splice

__all__ = ["Alphas", "SmoothActivations"]

_NORMS = {
    "RMSNormalization": (1,),
    "LayerNormalization": (1, 2),
    "SkipSimplifiedLayerNormalization": (2,),
    "SkipLayerNormalization": (2, 3),
}
_SMALLEST = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Alphas:
    """How much of the outliers moves into the weights, between 0 (nothing) and 1, by where the input comes from.

    Attributes:
        norm: Inputs made by a norm (q/k/v, gate/up).
        product: Inputs made by a gated product (down).
        head: The lm_head's input; None leaves it alone.
    """

    norm: float
    product: float
    head: float | None


class SmoothActivations(GraphPass):
    """Divide the inputs of matmuls by a factor per channel, folded into what makes the input.

    The factors go into a norm's weight and bias, or into the columns of the matmul that feeds a
    gated product: free and exact. The lm_head's input is an output of the graph as well, so it
    alone costs a multiplication. Where nothing can be folded nothing is done.

    Args:
        absmax: For the name of a matmul's input, its channels' largest magnitudes [inputs].
        alphas: The exponents.
    """

    def __init__(self, absmax: Mapping[str, np.ndarray], alphas: Alphas) -> None:
        super().__init__()
        self._absmax = absmax
        self._alphas = alphas

    def rewrite(self, model: ir.Model) -> bool:
        """Smooth the input of every group of matmuls that share it."""
        groups: dict[ir.Value, list[Linear]] = defaultdict(list)
        for linear in find_linears(model.graph):
            groups[linear.input].append(linear)
        last = list(groups)[-1] if groups else None
        changed = False
        for value, group in groups.items():
            if value.name in self._absmax:
                changed |= self._smooth(model.graph, value, group, is_head=value is last)
        return changed

    def _smooth(self, graph: ir.Graph, value: ir.Value, group: Sequence[Linear], *, is_head: bool) -> bool:
        readers = {linear.node for linear in group}
        norm, product = _norm(value, readers), _gated_product(value, readers)
        if norm is not None:
            alpha, divide = self._alphas.norm, _norm_division(graph, norm)
        elif product is not None:
            alpha, divide = self._alphas.product, _column_division(graph, product)
        elif is_head and self._alphas.head is not None:
            alpha, divide = self._alphas.head, _explicit_division(graph, value, group)
        else:
            return False
        factors = _factors(self._absmax[str(value.name)], [linear.matrix() for linear in group], alpha)
        for linear in group:
            matrix = linear.matrix() * factors[:, None]
            _set_input(graph, linear.node, 1, matrix.T if linear.transposed else matrix)
        divide(factors)
        return True


_Divide = Callable[[np.ndarray], None]


def _factors(absmax: np.ndarray, matrices: Sequence[np.ndarray], alpha: float) -> np.ndarray:
    """s_j, normalized to a geometric mean of 1: [inputs] float32."""
    rows = np.max([np.abs(matrix).max(axis=1) for matrix in matrices], axis=0)
    logs = alpha * np.log(np.maximum(absmax, _SMALLEST)) - (1 - alpha) * np.log(np.maximum(rows, _SMALLEST))
    factors: np.ndarray = np.exp(logs - logs.mean())
    return factors.astype(np.float32)


def _set_input(graph: ir.Graph, node: ir.Node, index: int, array: np.ndarray) -> None:
    """Give a node a constant of its own."""
    name = str(node.inputs[index].name).removesuffix(".smooth")  # type: ignore[union-attr]
    node.replace_input_with(index, Splice(graph, node).constant(np.asarray(array, order="C"), f"{name}.smooth"))


def _norm(value: ir.Value, readers: set[ir.Node]) -> ir.Node | None:
    """The norm that makes `value`, if no one else reads what it makes."""
    while not value.is_graph_output() and set(consumers(value)) <= readers:
        node = value.producer()
        if node is None:
            return None
        if node.op_type in _NORMS and value is node.outputs[0]:
            return node if all(is_weight(node.inputs[index], 1) for index in _constants(node)) else None
        if node.op_type != "Reshape":
            return None
        value, readers = node.inputs[0], {node}  # type: ignore[assignment]
    return None


def _constants(node: ir.Node) -> list[int]:
    """The indices of a norm's weight and bias."""
    return [index for index in _NORMS[node.op_type] if index < len(node.inputs) and node.inputs[index] is not None]


def _norm_division(graph: ir.Graph, node: ir.Node) -> _Divide:
    def divide(factors: np.ndarray) -> None:
        for index in _constants(node):
            _set_input(graph, node, index, weight(node.inputs[index]) / factors)

    return divide


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """Columns start:stop of a matmul's weight, and of the bias behind it."""

    matmul: ir.Node
    bias: ir.Node | None
    start: int
    stop: int | None


def _gated_product(value: ir.Value, readers: set[ir.Node]) -> _Columns | None:
    """The matmul whose columns scale `value` linearly, where `value` is a product."""
    product = producer(value, "Mul")
    if product is None or value.is_graph_output() or not set(consumers(value)) <= readers:
        return None
    found = [_columns(factor) for factor in product.inputs if factor is not None and consumers(factor) == [product]]
    return next((columns for columns in found if columns is not None), None)


def _columns(value: ir.Value) -> _Columns | None:
    """Which columns of a matmul `value` consists of, if it is nothing else."""
    start, stop = 0, None
    split = producer(value, "Split")
    if split is not None and split.inputs[0] is not None:
        sizes = [static_shape(output)[-1] or 0 for output in split.outputs]
        index = list(split.outputs).index(value)
        start, stop, value = sum(sizes[:index]), sum(sizes[: index + 1]), split.inputs[0]
    bias = producer(value, "Add")
    if bias is not None:
        if not is_weight(bias.inputs[1], 1) or bias.inputs[0] is None or len(consumers(value)) != 1:
            return None
        value = bias.inputs[0]
    matmul = producer(value, "MatMul")
    if matmul is None or not is_weight(matmul.inputs[1], 2) or len(consumers(value)) != 1:
        return None
    return _Columns(matmul=matmul, bias=bias, start=start, stop=stop)


def _column_division(graph: ir.Graph, columns: _Columns) -> _Divide:
    def divide(factors: np.ndarray) -> None:
        nodes = [columns.matmul, *([columns.bias] if columns.bias is not None else [])]
        for node in nodes:
            array = weight(node.inputs[1]).copy()
            array[..., columns.start : columns.stop] /= factors
            _set_input(graph, node, 1, array)

    return divide


def _explicit_division(graph: ir.Graph, value: ir.Value, group: Sequence[Linear]) -> _Divide:
    def divide(factors: np.ndarray) -> None:
        splice = Splice(graph, group[0].node)
        divided = splice.op("Mul", value, splice.constant(1 / factors, f"{value.name}.factors"))
        divided.shape, divided.type = value.shape, value.type
        for linear in group:
            linear.node.replace_input_with(0, divided)

    return divide
