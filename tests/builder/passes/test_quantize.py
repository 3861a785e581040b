"""int8 and int4 matmuls, and the smoothing before them."""

import numpy as np
import pytest

from spec_trt.builder.linear import find_linears
from spec_trt.builder.passes.quantize_int4 import QuantizeInt4, quantize_blocks
from spec_trt.builder.passes.quantize_int8 import QuantizeInt8, quantize_columns
from spec_trt.builder.passes.rotate_head import RotateHead, hadamard
from spec_trt.builder.passes.smooth_activations import Alphas, SmoothActivations
from tests.builder.graphs import apply, assert_same, make_graph, op_types, random_array, run_graph

ALPHAS = Alphas(norm=0.5, product=0.5, head=0.5)


def two_matmuls(inputs: int = 24):
    return make_graph(
        f"""g (float[b, n, {inputs}] x) => (float[b, n, 10] y, float[b, n, 6] z) {{
            y = MatMul (x, w)  z = MatMul (x, v) }}""",
        w=random_array(inputs, 10),
        v=random_array(inputs, 6, seed=1),
    )


def tied():
    return make_graph(
        """g (int64[b, n] ids, float[b, n, 8] x) => (float[b, n, 8] e, float[b, n, 50] y) {
            e = Gather (w, ids)  y = com.microsoft.FusedMatMul <transB = 1> (x, w) }""",
        w=random_array(50, 8),
    )


def test_int8_product_is_the_integer_product_scaled():
    model = two_matmuls()
    x = random_array(2, 3, 24, seed=2)
    absmax = np.abs(x).max(axis=-1, keepdims=True)
    weight, scales = quantize_columns(random_array(24, 10))
    expected = (np.rint(x / absmax * 127) @ weight.astype(np.float32)) * (absmax / 127) * scales
    np.testing.assert_allclose(run_graph(apply(QuantizeInt8(), model), {"x": x})["y"], expected, rtol=1e-4, atol=1e-5)


def test_int8_is_close_and_shares_the_quantization_of_an_input():
    model = two_matmuls()
    after = apply(QuantizeInt8(), model)
    assert op_types(after).count("QuantizeLinear") == 1
    assert op_types(after).count("MatMulIntegerToFloat") == 2
    assert_same(model, after, {"x": random_array(2, 3, 24, seed=2)}, tolerance=0.1)


def test_int8_weights_round_to_the_nearest_and_zeros_stay():
    matrix = random_array(16, 5)
    matrix[:, 3] = 0
    weight, scales = quantize_columns(matrix)
    assert weight.dtype == np.int8
    assert np.abs(weight).max(axis=0).tolist() == [127, 127, 127, 0, 127]
    assert (np.abs(weight * scales - matrix) <= scales / 2 + 1e-6).all()


@pytest.mark.parametrize("graph_pass", [QuantizeInt8(), QuantizeInt4()], ids=["int8", "int4"])
def test_a_row_is_bit_identical_whatever_shares_its_pass(graph_pass):
    after = apply(graph_pass, two_matmuls(64))
    x = random_array(1, 64, 64, seed=3)
    x[0, 1] *= 1000
    x[0, 2] = 0
    together = run_graph(after, {"x": x})
    assert np.isfinite(together["y"]).all()
    assert (together["y"][0, 2] == 0).all()
    for rows in ([0], [5], [0, 1], [2, 5, 0], list(range(17)), list(range(40, 64))):
        found = run_graph(after, {"x": x[:, rows]})
        assert all(np.array_equal(found[name], together[name][:, rows]) for name in found)


@pytest.mark.parametrize("graph_pass", [QuantizeInt8(), QuantizeInt4()], ids=["int8", "int4"])
def test_tied_lm_head_is_quantized_and_the_embedding_is_not(graph_pass):
    model = tied()
    after = apply(graph_pass, model)
    assert "FusedMatMul" not in op_types(after)
    assert not find_linears(after.graph)
    feeds = {"ids": np.array([[3, 49]]), "x": random_array(1, 2, 8, seed=5)}
    assert np.array_equal(run_graph(after, feeds)["e"], run_graph(model, feeds)["e"])
    tolerance = 0.1 if isinstance(graph_pass, QuantizeInt8) else 1.0
    assert_same(model, after, feeds, tolerance)


def test_router_stays_float():
    model = make_graph(
        "g (float[n, 8] x) => (float[n, 4] y) { r = MatMul (x, w)  y = Softmax (r) }", w=random_array(8, 4)
    )
    assert not QuantizeInt8()(model).modified


def test_rotated_head_computes_the_same():
    model = make_graph(
        """g (int64[b, n] ids, float[b, n, 48] x) => (float[b, n, 48] e, float[b, n, 30] y) {
            e = Gather (w, ids)  y = com.microsoft.FusedMatMul <transB = 1> (x, w) }""",
        w=random_array(30, 48),
    )
    after = apply(RotateHead(), model)
    assert op_types(after) == ["Gather", "Reshape", "MatMul", "Reshape", "FusedMatMul"]
    assert len(find_linears(after.graph)) == 1
    assert_same(model, after, {"ids": np.array([[1, 29]]), "x": random_array(1, 2, 48, seed=1)}, tolerance=1e-4)


def test_hadamard_is_orthogonal():
    matrix = hadamard(64)
    np.testing.assert_allclose(matrix @ matrix, np.eye(64), atol=1e-5)


def test_odd_head_is_not_rotated():
    assert not RotateHead()(two_matmuls(24)).modified


@pytest.mark.parametrize("inputs", [64, 40, 17])
def test_int4_blocks_are_what_the_kernel_reads(inputs):
    model = two_matmuls(inputs)
    after = apply(QuantizeInt4(16, accuracy_level=1), model)
    x = random_array(2, 3, inputs, seed=2)
    np.testing.assert_allclose(run_graph(after, {"x": x})["y"], x @ restore(random_array(inputs, 10), 16), atol=1e-4)


def restore(matrix, block):
    """The matrix that a block-quantized one stands for."""
    blocks = quantize_blocks(matrix, block)
    numbers = np.stack([blocks.packed & 15, blocks.packed >> 4], axis=-1).reshape(*blocks.scales.shape, block)
    zeros = np.stack([blocks.zero_points & 15, blocks.zero_points >> 4], axis=-1)
    zeros = zeros.reshape(blocks.scales.shape[0], -1)[:, : blocks.scales.shape[1]]
    values = (numbers - zeros[..., None].astype(np.float32)) * blocks.scales[..., None]
    return values.reshape(values.shape[0], -1)[:, : matrix.shape[0]].T


def test_int4_error_is_within_a_step():
    matrix = random_array(64, 6)
    steps = np.repeat(quantize_blocks(matrix, 32).scales.T, 32, axis=0)
    assert (np.abs(restore(matrix, 32) - matrix) <= 2 * steps).all()
    assert np.square(restore(matrix, 32) - matrix).mean() < 0.01


# A norm before two matmuls, a gated product before the third, and an lm_head that reads an output.
LAYER = """g (float[b, n, 8] x) => (float[b, n, 8] hidden, float[b, n, 20] y) {
    a = RMSNormalization <axis = -1> (x, scale)
    gate = MatMul (a, wg)  act = Tanh (gate)
    up0 = MatMul (a, wu)  up = Add (up0, bu)
    product = Mul (act, up)  down = MatMul (product, wd)
    hidden = LayerNormalization <axis = -1> (down, scale, bias)
    y = MatMul (hidden, wh)
}"""


def layer():
    return make_graph(
        LAYER,
        scale=random_array(8, seed=1) + 2,
        bias=random_array(8, seed=2),
        wg=random_array(8, 12, seed=3),
        wu=random_array(8, 12, seed=4),
        bu=random_array(12, seed=5),
        wd=random_array(12, 8, seed=6),
        wh=random_array(8, 20, seed=7),
    )


def test_smoothing_changes_nothing_but_the_inputs_of_matmuls():
    model = layer()
    absmax = {name: np.exp(random_array(size, seed=8)) for name, size in (("a", 8), ("product", 12), ("hidden", 8))}
    after = apply(SmoothActivations(absmax, ALPHAS), model)
    assert op_types(after).count("Mul") == op_types(model).count("Mul") + 1  # the lm_head's
    assert_same(model, after, {"x": random_array(2, 3, 8)}, tolerance=1e-4)
    read = {value.name for node in after.graph for value in node.inputs if value is not None}
    assert not read & {"wg", "wu", "wd", "wh", "bu"}


def test_smoothing_evens_out_channels():
    x = random_array(2, 3, 8)
    model = make_graph(
        """g (float[b, n, 8] x) => (float[b, n, 5] y) {
            a = RMSNormalization <axis = -1> (x, scale)  y = MatMul (a, w) }""",
        scale=np.array([1, 1, 1, 50, 1, 1, 1, 1], np.float32),
        w=random_array(8, 5, seed=1),
    )
    feeds = {"x": x}
    expected = run_graph(model, feeds)["y"]
    smooth = apply(SmoothActivations({"a": np.array([1, 1, 1, 50, 1, 1, 1, 1], np.float32)}, ALPHAS), model)
    errors = [np.abs(run_graph(apply(QuantizeInt8(), item), feeds)["y"] - expected).mean() for item in (model, smooth)]
    assert errors[1] < errors[0] / 2


def test_smoothing_leaves_inputs_alone_that_others_read():
    model = make_graph(
        """g (float[b, n, 8] x) => (float[b, n, 8] z, float[b, n, 5] y) {
            a = RMSNormalization <axis = -1> (x, scale)  z = Tanh (a)  h = MatMul (a, w)  y = MatMul (h, v) }""",
        scale=random_array(8),
        w=random_array(8, 6, seed=1),
        v=random_array(6, 5, seed=2),
    )
    assert not SmoothActivations({"a": np.ones(8, np.float32)}, ALPHAS)(model).modified
