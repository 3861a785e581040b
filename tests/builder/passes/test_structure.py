"""The passes that change a graph's form and not its numbers."""

import numpy as np

from spec_trt.builder.passes.argmax_blocks import ArgMaxBlocks
from spec_trt.builder.passes.fold_transposes import FoldTransposes, UntransposeSharedWeights
from spec_trt.builder.passes.fuse_norms import FuseNorms
from spec_trt.builder.passes.fuse_silu import FuseSilu
from spec_trt.builder.passes.gather_rows import GatherRows
from spec_trt.builder.passes.merge_matmuls import MergeMatMuls
from spec_trt.builder.passes.pack_rotary import PackRotary
from spec_trt.builder.passes.split_gemms import SplitGemms
from spec_trt.builder.passes.split_heads import SplitHeads
from tests.builder.graphs import apply, assert_same, make_graph, op_types, random_array

HIDDEN = random_array(2, 3, 8, seed=9)


def test_transposed_weight_is_stored():
    model = make_graph("g (float[n, 8] x) => (float[n, 5] y) { t = Transpose <perm = [1, 0]> (w)  y = MatMul (x, t) }",
                       w=random_array(5, 8))  # fmt: skip
    after = apply(FoldTransposes(), model)
    assert op_types(after) == ["MatMul"]
    assert list(after.graph.initializers) == ["w.transposed"]
    assert_same(model, after, {"x": random_array(3, 8)})


def test_tied_embedding_stays_one_array():
    model = make_graph(
        """g (int64[n] ids, float[n, 8] x) => (float[n, 8] e, float[n, 5] y) {
            e = Gather (w, ids)  t = Transpose <perm = [1, 0]> (w)  y = MatMul (x, t) }""",
        w=random_array(5, 8),
    )
    after = apply(UntransposeSharedWeights(), model)
    assert op_types(after) == ["Gather", "FusedMatMul"]
    assert list(after.graph.initializers) == ["w"]
    assert_same(model, after, {"ids": np.array([4, 0]), "x": random_array(2, 8)})


def test_untied_weight_is_left_to_fold_transposes():
    model = make_graph("g (float[n, 8] x) => (float[n, 5] y) { t = Transpose <perm = [1, 0]> (w)  y = MatMul (x, t) }",
                       w=random_array(5, 8))  # fmt: skip
    assert not UntransposeSharedWeights()(model).modified


def test_gemm_becomes_matmul_and_add():
    model = make_graph(
        """g (float[n, 8] x) => (float[n, 5] y, float[n, 5] z) {
            y = Gemm (x, w, b)  z = Gemm <transB = 1> (x, v) }""",
        w=random_array(8, 5),
        b=random_array(5, seed=1),
        v=random_array(5, 8, seed=2),
    )
    after = apply(SplitGemms(), model)
    assert op_types(after) == ["MatMul", "Add", "MatMul"]
    assert_same(model, after, {"x": random_array(3, 8)})


def test_scaled_gemm_is_left_alone():
    model = make_graph("g (float[n, 8] x) => (float[n, 5] y) { y = Gemm <alpha = 0.5> (x, w) }", w=random_array(8, 5))
    assert not SplitGemms()(model).modified


# q, k and v of 2, 1 and 1 heads of 4; k alone has a bias. gate reads the same input.
PROJECTIONS = """g (float[b, n, 8] x)
    => (float[b, 2, n, 4] q, float[b, 1, n, 4] k, float[b, 1, n, 4] v, float[b, n, 6] g) {
    q0 = MatMul (x, wq)  q1 = Reshape (q0, heads2)  q = Transpose <perm = [0, 2, 1, 3]> (q1)
    k0 = MatMul (x, wk)  kb = Add (k0, bk)  k1 = Reshape (kb, heads1)  k = Transpose <perm = [0, 2, 1, 3]> (k1)
    v0 = MatMul (x, wv)  v1 = Reshape (v0, heads1)  v = Transpose <perm = [0, 2, 1, 3]> (v1)
    g = MatMul (x, wg)
}"""


def projections():
    return make_graph(
        PROJECTIONS,
        wq=random_array(8, 8, seed=1),
        wk=random_array(8, 4, seed=2),
        wv=random_array(8, 4, seed=3),
        wg=random_array(8, 6, seed=4),
        bk=random_array(4, seed=5),
        heads2=np.array([0, 0, 2, 4]),
        heads1=np.array([0, 0, 1, 4]),
    )


def test_projections_of_heads_are_merged():
    model = projections()
    after = apply(MergeMatMuls(), model)
    assert sorted(op_types(after)).count("MatMul") == 2  # the heads' and the gate's
    assert_same(model, after, {"x": HIDDEN})


def test_heads_are_split_behind_one_transpose():
    merged = apply(MergeMatMuls(), projections())
    after = apply(SplitHeads(), merged)
    assert op_types(after).count("Transpose") == op_types(after).count("Reshape") == op_types(after).count("Split") == 1
    assert_same(projections(), after, {"x": HIDDEN})


def test_norms_of_heads_move_behind_the_split():
    model = make_graph(
        """g (float[b, n, 12] x) => (float[b, 2, n, 4] q, float[b, 1, n, 4] k) {
            a, c = Split <axis = -1> (x, sizes)
            q0 = Reshape (a, heads2)  q1 = RMSNormalization <axis = -1, epsilon = 1e-3> (q0, scale)
            q = Transpose <perm = [0, 2, 1, 3]> (q1)
            k0 = Reshape (c, heads1)  k = Transpose <perm = [0, 2, 1, 3]> (k0)
        }""",
        sizes=np.array([8, 4]),
        heads2=np.array([0, 0, 2, 4]),
        heads1=np.array([0, 0, 1, 4]),
        scale=random_array(4),
    )
    after = apply(SplitHeads(), model)
    assert op_types(after) == ["Reshape", "Transpose", "Split", "RMSNormalization"]
    assert_same(model, after, {"x": random_array(2, 3, 12)})


def test_part_that_is_not_cut_into_heads_keeps_the_split():
    model = make_graph(
        """g (float[b, n, 12] x) => (float[b, 2, n, 4] q, float[b, n, 4] c) {
            a, c = Split <axis = -1> (x, sizes)
            q0 = Reshape (a, heads)  q = Transpose <perm = [0, 2, 1, 3]> (q0)
        }""",
        sizes=np.array([8, 4]),
        heads=np.array([0, 0, 2, 4]),
    )
    assert not SplitHeads()(model).modified


def rotary(second_cos: str = "cos"):
    return make_graph(
        f"""g (float[b, 4, n, 4] x, float[b, n, 2] cos, float[b, n, 2] sin)
            => (float[b, 2, n, 4] q, float[b, 1, n, 4] k, float[b, 1, n, 4] v) {{
            q0, k0, v = Split <axis = 1> (x, sizes)
            q = RotaryEmbedding <num_heads = 2> (q0, cos, sin)
            k = RotaryEmbedding <num_heads = 1> (k0, {second_cos}, sin)
        }}""",
        sizes=np.array([2, 1, 1]),
    )


def test_queries_and_keys_are_rotated_together():
    model = rotary()
    after = apply(PackRotary(), model)
    assert op_types(after) == ["Split", "RotaryEmbedding", "Split"]
    angles = random_array(2, 3, 2, seed=3)
    assert_same(model, after, {"x": random_array(2, 4, 3, 4), "cos": np.cos(angles), "sin": np.sin(angles)})


def test_other_angles_are_rotated_apart():
    assert not PackRotary()(rotary(second_cos="sin")).modified


def test_residual_sum_joins_the_norm():
    model = make_graph(
        """g (float[b, n, 8] x, float[b, n, 8] y) => (float[b, n, 8] total, float[b, n, 8] r, float[b, n, 8] l) {
            total = Add (x, y)
            r = RMSNormalization <axis = -1, epsilon = 1e-3> (total, scale)
            twice = Add (total, y)
            l = LayerNormalization <axis = -1, epsilon = 1e-3> (twice, scale, bias)
        }""",
        scale=random_array(8, seed=1),
        bias=random_array(8, seed=2),
    )
    after = apply(FuseNorms(), model)
    assert op_types(after) == ["SkipSimplifiedLayerNormalization", "SkipLayerNormalization"]
    assert_same(model, after, {"x": HIDDEN, "y": random_array(2, 3, 8, seed=4)})


def test_norm_of_a_sum_with_a_constant_is_left_alone():
    model = make_graph(
        """g (float[b, n, 8] x) => (float[b, n, 8] y) {
            total = Add (x, bias)  y = RMSNormalization <axis = -1> (total, scale) }""",
        scale=random_array(8, seed=1),
        bias=random_array(8, seed=2),
    )
    assert not FuseNorms()(model).modified


def test_silu_is_one_kernel():
    model = make_graph("g (float[n, 8] x) => (float[n, 8] y) { s = Sigmoid (x)  y = Mul (x, s) }")
    after = apply(FuseSilu(), model)
    assert op_types(after) == ["QuickGelu"]
    assert_same(model, after, {"x": 4 * random_array(3, 8)})


def test_sigmoid_of_something_else_is_left_alone():
    model = make_graph("g (float[n] x, float[n] z) => (float[n] y) { s = Sigmoid (x)  y = Mul (z, s) }")
    assert not FuseSilu()(model).modified


def gather(widths: list[int]):
    return make_graph(
        """g (float[b, n, 8] x, int64[b, r] rows) => (float[b, r, m] y) {
            column = Unsqueeze (rows, last)  index = Expand (column, widths)
            y = GatherElements <axis = 1> (x, index) }""",
        last=np.array([-1]),
        widths=np.array(widths),
    )


def test_rows_are_gathered_whole():
    model = gather([1, 1, 8])
    after = apply(GatherRows(), model)
    assert op_types(after) == ["Unsqueeze", "GatherND"]
    for rows in (np.array([[2, 0, 0], [1, 1, 2]]), np.zeros((2, 0), np.int64)):
        assert_same(model, after, {"x": HIDDEN, "rows": rows})


def test_gather_that_repeats_rows_is_left_alone():
    assert not GatherRows()(gather([1, 2, 8])).modified


def argmax(vocab: int):
    return make_graph(f"""g (float[b, r, {vocab}] x) => (int64[b, r] y) {{
        y = ArgMax <axis = -1, keepdims = 0> (x) }}""")


def test_argmax_by_blocks_takes_the_lowest_index_of_equal_maxima():
    model = argmax(1200)
    after = apply(ArgMaxBlocks(), model)
    assert "ReduceMax" in op_types(after)
    ties = np.zeros((2, 4, 1200), np.float32)
    ties[0, 0, [7, 8, 900]] = 1
    ties[0, 1, 1199] = 1
    ties[1, 2] = -5
    for array in (random_array(2, 5, 1200), ties, random_array(1, 0, 1200)):
        assert_same(model, after, {"x": array})


def test_argmax_over_a_small_or_prime_vocabulary_is_left_alone():
    assert not ArgMaxBlocks()(argmax(300)).modified
    assert not ArgMaxBlocks()(argmax(1201)).modified
