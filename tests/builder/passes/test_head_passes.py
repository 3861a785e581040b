"""The passes that change draft heads' graphs."""

import numpy as np
import pytest

from spec_trt.builder.linear import find_linears
from spec_trt.builder.passes.fold_embedding import FoldEmbedding
from spec_trt.builder.passes.fuse_silu import FuseSilu
from spec_trt.builder.passes.merge_heads import MergeHeads
from spec_trt.builder.passes.quantize_inputs import QuantizeInputs
from spec_trt.builder.passes.quantize_int4 import QuantizeInt4
from spec_trt.builder.passes.quantize_int8 import QuantizeInt8
from spec_trt.builder.passes.quantize_tables import QuantizeTables, quantize_rows
from spec_trt.builder.passes.reshape_targets import ReshapeTargets
from spec_trt.builder.passes.rotate_head import RotateHead
from tests.builder.graphs import Array, apply, assert_same, make_graph, op_types, random_array, run_graph

IDS = np.array([[4, 0, 9], [1, 1, 2]])


def draft(first, second, outputs=12):
    """A token's embedding and a feature side by side, multiplied: EAGLE's fc."""
    return make_graph(
        f"""g (int64[b, n] ids, float[b, n, 6] f) => (float[b, n, {outputs}] y) {{
            e = Gather (table, ids)  c = Concat <axis = -1> ({first}, {second})
            p = MatMul (c, w)  y = Add (p, bias) }}""",
        table=random_array(10, 8),
        w=random_array(14, outputs, seed=1),
        bias=random_array(outputs, seed=2),
    )


@pytest.mark.parametrize("order", [("e", "f"), ("f", "e")])
def test_embeddings_half_of_a_product_becomes_a_table(order):
    model = draft(*order)
    after = apply(FoldEmbedding(), model)
    assert op_types(after) == ["Gather", "MatMul", "Add"]
    (linear,) = find_linears(after.graph)
    assert linear.matrix().shape == (6, 12)
    assert_same(model, after, {"ids": IDS, "f": random_array(2, 3, 6, seed=3)})


def test_table_that_would_become_too_wide_is_left_alone():
    assert not FoldEmbedding()(draft("e", "f", outputs=17)).modified


def test_norm_of_an_embedding_is_folded_unless_the_table_is_tied():
    text = """g (int64[b, n] ids, float[b, n, 8] f) => (float[b, n, 5] y, float[b, n, 10] z) {{
        e = Gather (table, ids)  normed = RMSNormalization <axis = -1, epsilon = 1e-3> (e, scale)
        c = Concat <axis = -1> (normed, f)  y = MatMul (c, w)  {other} }}"""
    weights = {"table": random_array(10, 8), "scale": random_array(8, seed=4), "w": random_array(16, 5, seed=1)}
    feeds = {"ids": IDS, "f": random_array(2, 3, 8, seed=3)}
    model = make_graph(text.format(other="z = Gather (logits, ids)"), logits=random_array(10, 10), **weights)
    after = apply(FoldEmbedding(), model)
    assert "RMSNormalization" not in op_types(after)
    assert "Concat" not in op_types(after)
    assert_same(model, after, feeds)
    tied = make_graph(text.format(other="t = Transpose <perm = [1, 0]> (table)  z = MatMul (f, t)"), **weights)
    assert not FoldEmbedding()(tied).modified


def heads(blocks):
    """Three Medusa heads of so many blocks on one hidden state."""
    lines: list[str] = []
    weights: dict[str, Array] = {}
    for head in range(3):
        source = "x"
        for block in range(blocks):
            name = f"{head}_{block}"
            weights |= {f"w{name}": random_array(8, 8, seed=head), f"b{name}": random_array(8, seed=10 + head)}
            lines.append(
                f"p{name} = MatMul ({source}, w{name})  a{name} = Add (p{name}, b{name})  s{name} = Sigmoid (a{name})"
                f"  m{name} = Mul (a{name}, s{name})  r{name} = Add ({source}, m{name})"
            )
            source = f"r{name}"
        lines.append(f"u{head} = Unsqueeze ({source}, axis)")
    text = f"g (float[b, n, 8] x) => (float[b, n, 3, 8] y) {{ {' '.join(lines)} y = Concat <axis = -2> (u0, u1, u2) }}"
    return make_graph(text, axis=np.array([-2]), **weights)


def test_heads_of_one_block_become_one_matmul():
    model = apply(FuseSilu(), heads(1))
    after = apply(MergeHeads(), model)
    assert op_types(after) == ["MatMul", "Add", "QuickGelu", "Reshape", "Unsqueeze", "Add"]
    assert_same(model, after, {"x": random_array(2, 3, 8)})


def test_heads_of_two_blocks_stay():
    assert not MergeHeads()(apply(FuseSilu(), heads(2))).modified


def test_reshape_target_is_written_down():
    model = make_graph(
        """g (float[b, n, 2, 4] x, int64[b, n] ids) => (float[b, n, 8] y) {
            s = Shape <start = 0, end = 2> (ids)  t = Concat <axis = 0> (s, last)
            y = Reshape <allowzero = 1> (x, t) }""",
        last=np.array([8]),
    )
    after = apply(ReshapeTargets(), model)
    assert op_types(after) == ["Reshape"]
    assert run_graph(after, {"x": random_array(2, 3, 2, 4), "ids": IDS})["y"].shape == (2, 3, 8)


def test_reshape_that_moves_sizes_that_vary_is_left_alone():
    model = make_graph(
        """g (float[b, n, 8] x) => (float[m, 8] y) {
            s = Shape <start = 2, end = 3> (x)  t = Concat <axis = 0> (first, s)  y = Reshape (x, t) }""",
        first=np.array([-1]),
    )
    assert not ReshapeTargets()(model).modified


def test_rows_of_a_table_are_rounded_in_blocks():
    table = random_array(10, 64)
    table[:, 32:] *= 1e-3
    table[5] = 0
    numbers, scales = quantize_rows(table, 32)
    restored = (numbers.astype(np.float32) - 128).reshape(10, 2, 32) * scales[..., None]
    assert (np.abs(restored - table.reshape(10, 2, 32)) <= scales[..., None] / 2 + 1e-9).all()
    text = "g (int64[b, n] ids) => (float[b, n, 64] y) { y = Gather (t, ids) }"
    found = run_graph(apply(QuantizeTables(), make_graph(text, t=table)), {"ids": IDS})["y"]
    np.testing.assert_allclose(found, restored.reshape(10, 64)[IDS], rtol=1e-6)
    narrow = make_graph("g (int64[b, n] ids) => (float[b, n, 8] y) { y = Gather (t, ids) }", t=random_array(10, 8))
    assert not QuantizeTables()(narrow).modified


@pytest.mark.parametrize("inputs", [96, 40])
def test_input_is_multiplied_in_blocks_of_channels(inputs):
    model = make_graph(
        f"g (float[b, n, {inputs}] x) => (float[b, n, 7] y) {{ y = MatMul (x, w) }}", w=random_array(inputs, 7)
    )
    after = apply(QuantizeInputs(), model)
    assert op_types(after) == ["MatMulNBits"]
    x = random_array(1, 9, inputs, seed=1)
    x[..., :32] *= 1e4  # one scale per row would leave nothing of the other channels
    exact = x @ random_array(inputs, 7)
    small = x.copy()
    small[..., :32] = 0
    found = run_graph(after, {"x": x})["y"]
    assert np.linalg.norm(found - exact) < 0.02 * np.linalg.norm(exact)
    found_small = run_graph(after, {"x": small})["y"]
    expected = small @ random_array(inputs, 7)
    assert np.linalg.norm(found_small - expected) < 0.02 * np.linalg.norm(expected)
    for rows in ([0], [3, 1], list(range(2, 9))):
        assert np.array_equal(run_graph(after, {"x": x[:, rows]})["y"], found[:, rows])


def test_matmul_of_anything_else_is_not_an_inputs():
    model = make_graph("g (float[b, n, 32] x) => (float[b, n, 7] y) { a = Abs (x)  y = MatMul (a, w) }",
                       w=random_array(32, 7))  # fmt: skip
    assert not QuantizeInputs()(model).modified


@pytest.mark.parametrize("graph_pass", [QuantizeInt8(), QuantizeInt4()], ids=["int8", "int4"])
def test_matmul_of_a_matmul_is_quantized(graph_pass):
    model = make_graph(
        "g (float[b, n, 32] x) => (float[b, n, 7] y) { a = MatMul (x, w)  y = MatMul (a, v) }",
        w=random_array(32, 32),
        v=random_array(32, 7, seed=1),
    )
    after = apply(graph_pass, model)
    assert not find_linears(after.graph)
    x = random_array(1, 3, 32, seed=2)
    exact = run_graph(model, {"x": x})["y"]
    assert np.linalg.norm(run_graph(after, {"x": x})["y"] - exact) < 0.15 * np.linalg.norm(exact)


def test_input_with_an_axis_of_heads_is_rotated():
    model = make_graph(
        "g (float[b, n, 3, 64] x) => (float[b, n, 3, 7] y) { a = Abs (x)  y = MatMul (a, w) }", w=random_array(64, 7)
    )
    after = apply(RotateHead(), model)
    assert op_types(after) == ["Abs", "Reshape", "MatMul", "Reshape", "MatMul"]
    assert_same(model, after, {"x": random_array(2, 3, 3, 64, seed=1)}, tolerance=1e-4)


def test_graphs_own_input_is_rotated_once_for_all_its_readers():
    model = make_graph(
        """g (float[b, n, 64] x) => (float[b, n, 7] y, float[b, n, 9] z) {
            p = MatMul (x, w)  q = MatMul (x, v)  a = Abs (q)  z = MatMul (a, u)  y = Neg (p) }""",
        w=random_array(64, 7),
        v=random_array(64, 16, seed=1),
        u=random_array(16, 9, seed=2),
    )
    after = apply(RotateHead(), model)
    assert op_types(after).count("Reshape") == 4  # around x and around a
    assert_same(model, after, {"x": random_array(2, 3, 64, seed=3)}, tolerance=1e-4)
