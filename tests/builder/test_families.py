"""Whole tiny models of several families: the engine beside the bundle."""

import numpy as np
import pytest

from spec_trt import names
from spec_trt.builder.build import build_engine
from spec_trt.builder.config import BuildConfig
from spec_trt.builder.onnxruntime_session import OrtGraph
from spec_trt.export.architecture import inspect_architecture
from spec_trt.export.trees import draw_pass, pass_shapes
from tests.families import make_config

# Grouped heads and a tied lm_head; norms of heads; LayerNorm, biases and Gemm; softcap, windows and
# post-norms; partial rotary and a parallel MLP; experts; a fused q/k/v projection.
FAMILIES = ("llama", "qwen3", "gpt2", "gemma2", "phi", "mixtral", "gpt_neox", "phi3")


@pytest.fixture(scope="module")
def engine(tmp_path_factory, family_bundle):
    """The engine of a family's tiny model in a precision, and its bundle's own graph."""
    root = tmp_path_factory.mktemp("engines")
    made = {}

    def make(family, precision):
        if (family, precision) not in made:
            out = root / f"{family}-{precision}"
            build_engine(BuildConfig(bundle=family_bundle(family), out=out, precision=precision))
            made[family, precision] = OrtGraph(out / "base.onnx", threads=1)
        return made[family, precision]

    return make


def passes(family):
    architecture = inspect_architecture(make_config(family))
    shapes = pass_shapes(architecture.sliding_window)
    return [draw_pass(shape, architecture, seed).feeds() for seed, shape in enumerate(shapes)]


def error(found, expected):
    """The largest difference, measured by the largest number."""
    return np.abs(found - expected).max(initial=0) / np.abs(expected).max(initial=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
def test_fp32_engine_equals_the_bundle(family, family_bundle, engine):
    bundle, lean = OrtGraph(family_bundle(family) / "base.onnx", threads=1), engine(family, "fp32")
    outputs = [item.name for item in bundle.session.get_outputs()]
    assert [item.name for item in lean.session.get_outputs()] == outputs
    assert list(lean.inputs) == list(bundle.inputs)
    for feeds in passes(family):
        results = zip(outputs, lean.run(feeds, outputs), bundle.run(feeds, outputs), strict=True)
        for name, found, expected in results:
            assert found.dtype == expected.dtype
            assert found.shape == expected.shape
            if name == names.ARGMAX:
                assert np.array_equal(found, expected)
            else:
                assert error(found, expected) < 1e-4, name


@pytest.mark.parametrize(("precision", "bound"), [("int8", 0.12), ("int4", 0.6)])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2", "gemma2", "phi"])
def test_quantized_engine_is_close_and_finite(family, precision, bound, engine):
    lean, quantized = engine(family, "fp32"), engine(family, precision)
    for feeds in passes(family):
        found, expected = (graph.run(feeds, [names.HIDDEN_STATES])[0] for graph in (quantized, lean))
        assert np.isfinite(found).all()
        assert np.abs(found - expected).mean() < bound * np.abs(expected).mean()


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2", "gemma2", "mixtral"])
def test_a_node_is_bit_identical_whatever_follows_it(family, precision, engine):
    graph = engine(family, precision)
    outputs = [names.HIDDEN_STATES, names.new_key(1), names.new_value(1)]
    whole = passes(family)[1]  # ragged, with tentative rows
    nodes = whole[names.INPUT_IDS].shape[1]
    tentative = whole[names.TREE_MASK].shape[2] - nodes
    together = graph.run(whole, outputs)
    for count in range(1, nodes):
        fewer = whole | {
            names.INPUT_IDS: whole[names.INPUT_IDS][:, :count],
            names.POSITION_IDS: whole[names.POSITION_IDS][:, :count],
            names.TREE_MASK: whole[names.TREE_MASK][:, :count, : tentative + count],
            names.LOGITS_ROWS: whole[names.LOGITS_ROWS][:, :0],
        }
        hidden, key, value = graph.run(fewer, outputs)
        assert np.array_equal(hidden, together[0][:, :count])
        assert np.array_equal(key, together[1][:, :, :count])
        assert np.array_equal(value, together[2][:, :, :count])


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_a_sequence_is_bit_identical_whatever_shares_its_batch(precision, engine):
    graph = engine("llama", precision)
    outputs = [names.LOGITS, names.HIDDEN_STATES]
    whole = passes("llama")[0]
    together = graph.run(whole, outputs)
    for index in range(2):
        alone = {name: array[index : index + 1] for name, array in whole.items()}
        for found, expected in zip(graph.run(alone, outputs), together, strict=True):
            assert np.array_equal(found[0], expected[index])


def test_lean_llama_has_the_kernels_it_should_have(engine, family_bundle, tmp_path):
    import onnx_ir as ir

    engine("llama", "fp32")
    out = tmp_path / "int8"
    build_engine(BuildConfig(bundle=family_bundle("llama"), out=out, precision="int8"))
    kinds = [node.op_type for node in ir.load(out / "base.onnx").graph]
    layers = 2
    assert kinds.count("MatMulIntegerToFloat") == 5 * layers + 1  # q/k/v, o, gate, up, down; the lm_head
    assert kinds.count("QuantizeLinear") == 4 * layers + 1
    assert kinds.count("RotaryEmbedding") == kinds.count("Softmax") == layers
    assert kinds.count("Cos") == kinds.count("Sin") == 1
    assert kinds.count("SkipSimplifiedLayerNormalization") == 2 * layers
    assert "TreeAttention" not in kinds
