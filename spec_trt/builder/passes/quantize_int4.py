"""4-bit weights in blocks, for memory and for single-node passes."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from spec_trt.builder.graph_pass import GraphPass
from spec_trt.builder.linear import Linear, find_linears
from spec_trt.builder.splice import MS_DOMAIN, Splice, replace

__all__ = ["Blocks", "QuantizeInt4", "quantize_blocks"]

_LEVELS = 15
_SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8)


class QuantizeInt4(GraphPass):
    """Turn matmuls on constant weights into `MatMulNBits`.

    Args:
        block: Inputs that share a scale and a zero point; a power of two, at least 16.
        accuracy_level: 4 rounds activations to int8, per row and block. 1 keeps them in float32, but
            then a pass of one row gives other last digits than the same row among others.
    """

    def __init__(self, block: int = 32, accuracy_level: int = 4) -> None:
        super().__init__()
        self._block = block
        self._accuracy_level = accuracy_level

    def rewrite(self, model: ir.Model) -> bool:
        """Replace every matmul on a constant matrix."""
        linears = find_linears(model.graph)
        for linear in linears:
            replace(linear.node.outputs[0], self._multiply(Splice(model.graph, linear.node), linear))
        return bool(linears)

    def ensures(self, model: ir.Model) -> None:
        """Every eligible weight is quantized, the lm_head included."""
        left = find_linears(model.graph)
        if left:
            raise ir.passes.PostconditionError(f"{left[0].name} is not quantized")

    def _multiply(self, splice: Splice, linear: Linear) -> ir.Value:
        matrix = linear.matrix()
        blocks = quantize_blocks(matrix, self._block)
        return splice.op(
            "MatMulNBits",
            linear.input,
            splice.constant(blocks.packed, f"{linear.name}.int4"),
            splice.constant(blocks.scales, f"{linear.name}.scales"),
            splice.constant(blocks.zero_points, f"{linear.name}.zero_points"),
            domain=MS_DOMAIN,
            K=matrix.shape[0],
            N=matrix.shape[1],
            bits=4,
            block_size=self._block,
            accuracy_level=self._accuracy_level,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """A matrix as `MatMulNBits` wants it; w = scale * (q - zero point).

    Attributes:
        packed: [outputs, blocks, block / 2] uint8, the first of two numbers in the low half.
        scales: [outputs, blocks] float32.
        zero_points: [outputs, ceil(blocks / 2)] uint8, packed alike.
    """

    packed: np.ndarray
    scales: np.ndarray
    zero_points: np.ndarray


def quantize_blocks(matrix: np.ndarray, block: int) -> Blocks:
    """Round a matrix [inputs, outputs] to 4 bits; the range of each block is the one with the least squared error."""
    inputs, outputs = matrix.shape
    count = -(-inputs // block)
    padded = np.zeros((outputs, count * block), np.float32)
    padded[:, :inputs] = matrix.T
    values = padded.reshape(outputs, count, block)
    quantized, scales, zero_points = _round_blocks(values)
    return Blocks(packed=_pack(quantized), scales=scales, zero_points=_pack(zero_points))


def _round_blocks(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """From [outputs, blocks, block] to numbers 0 ... 15, and to scales and zero points [outputs, blocks]."""
    low = np.minimum(values.min(axis=2), 0)
    high = np.maximum(values.max(axis=2), 0)
    best_error = np.full(low.shape, np.inf, np.float32)
    best_scales, best_zeros = np.ones_like(low), np.zeros_like(low)
    for shrink in _SHRINKS:
        scales = (high - low) * np.float32(shrink / _LEVELS)
        scales[scales == 0] = 1.0
        zeros = np.clip(np.rint(-low * shrink / scales), 0, _LEVELS)
        restored = (_round(values, scales, zeros) - zeros[..., None]) * scales[..., None]
        error = np.square(restored - values).sum(axis=2)
        better = error < best_error
        best_error = np.where(better, error, best_error)
        best_scales, best_zeros = np.where(better, scales, best_scales), np.where(better, zeros, best_zeros)
    quantized = _round(values, best_scales, best_zeros).astype(np.uint8)
    return quantized, best_scales.astype(np.float32), best_zeros.astype(np.uint8)


def _round(values: np.ndarray, scales: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    rounded: np.ndarray = np.clip(np.rint(values / scales[..., None]) + zeros[..., None], 0, _LEVELS)
    return rounded


def _pack(numbers: np.ndarray) -> np.ndarray:
    """Put two 4-bit numbers of the last axis into each byte; an odd end is filled with zeros."""
    if numbers.shape[-1] % 2:
        numbers = np.concatenate([numbers, np.zeros_like(numbers[..., :1])], axis=-1)
    packed: np.ndarray = numbers[..., 0::2] | (numbers[..., 1::2] << 4)
    return packed
