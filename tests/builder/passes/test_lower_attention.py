"""The lowered op against its NumPy definition."""

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings

from spec_trt.builder.passes.lower_attention import LowerAttention
from spec_trt.plugins.tree_attention.reference import tree_attention
from tests.builder.graphs import make_graph, op_types, run_graph
from tests.plugins.operands import VARIANTS, inputs_of, make_operands, operands


def lowered(arrays, attributes):
    """The op on inputs of these sizes, lowered."""
    heads, kv_heads, head_dim = arrays["query"].shape[1], arrays["key"].shape[1], arrays["key"].shape[3]
    shapes = {
        "query": f"float[b, {heads}, n, {head_dim}]",
        "key": f"float[b, {kv_heads}, n, {head_dim}]",
        "value": f"float[b, {kv_heads}, n, {head_dim}]",
        "past_key": f"float[b, {kv_heads}, p, {head_dim}]",
        "past_value": f"float[b, {kv_heads}, p, {head_dim}]",
        "past_lens": "int64[b]",
        "tree_mask": "bool[b, n, w]",
        "positions": "int64[b, w]",
    }
    inputs = inputs_of(arrays, attributes)
    text = ", ".join(f"{name} = {value}" for name, value in attributes.items())
    model = make_graph(
        f"""g ({", ".join(f"{shapes[name]} {name}" for name in inputs)}) => (float[b, {heads}, n, {head_dim}] out) {{
            out = spec_trt.TreeAttention <{text}> ({", ".join(inputs)}) }}"""
    )
    LowerAttention()(model)
    return model


@pytest.mark.parametrize("variant", VARIANTS)
def test_lowered_op_equals_its_definition(variant):
    attributes = VARIANTS[variant]

    @given(arrays=operands())
    @settings(max_examples=30, deadline=None)
    def check(arrays):
        inputs = inputs_of(arrays, attributes)
        found = run_graph(lowered(arrays, attributes), inputs)["out"]
        np.testing.assert_allclose(found, tree_attention(**inputs, **attributes), atol=2e-6)

    check()


def test_layers_with_equal_masks_share_one():
    arrays = make_operands(0, batch=1, kv_heads=1, group=2, nodes=3, tentative=0, past=4)
    model = lowered(arrays, VARIANTS["plain"])
    layers = make_two_layers()
    LowerAttention()(layers)
    assert op_types(layers).count("Where") == op_types(model).count("Where")
    assert op_types(layers).count("Softmax") == 2


def make_two_layers():
    call = "spec_trt.TreeAttention <scale = 0.7> (q, k, v, pk, pv, lens, mask)"
    return make_graph(f"""g (float[b, 2, n, 4] q, float[b, 1, n, 4] k, float[b, 1, n, 4] v, float[b, 1, p, 4] pk,
        float[b, 1, p, 4] pv, int64[b] lens, bool[b, n, w] mask) => (float[b, 2, n, 4] out) {{
        one = {call}
        two = {call}
        out = Add (one, two)
    }}""")


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("past", [0, 50, 300])
def test_a_node_does_not_depend_on_what_follows_it_in_its_pass(group, past):
    arrays = make_operands(1, batch=1, kv_heads=2, group=group, nodes=40, tentative=0, past=past, head_dim=16)
    arrays["tree_mask"] &= np.tri(40, dtype=np.bool_)
    model = lowered(arrays, VARIANTS["plain"])
    together = run_graph(model, inputs_of(arrays, VARIANTS["plain"]))["out"]
    for count in (1, 2, 3, 17, 33):
        fewer = {name: arrays[name][:, :, :count] for name in ("query", "key", "value")}
        mask = {"tree_mask": arrays["tree_mask"][:, :count, :count]}
        found = run_graph(model, inputs_of(arrays | fewer | mask, VARIANTS["plain"]))["out"]
        assert np.array_equal(found, together[:, :, :count])


def test_unknown_number_of_heads_is_refused():
    model = make_two_layers()
    model.graph.inputs[0].shape = ir.Shape(["b", "h", "n", 4])
    with pytest.raises(ir.passes.PreconditionError, match="must be known"):
        LowerAttention()(model)
