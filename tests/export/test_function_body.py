"""The function body in ONNX Runtime, and the PyTorch reference, against the op's definition."""

from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from onnx import helper

from spec_trt import names
from spec_trt.export.attention import AttentionCall
from spec_trt.export.function_body import OPSET, tree_attention_function
from spec_trt.export.torch_reference import reference
from spec_trt.plugins.tree_attention.reference import tree_attention
from tests.plugins.operands import INPUTS, VARIANTS, Operands, inputs_of, make_operands, operands


def make_model(variant: str, float_type: int = onnx.TensorProto.FLOAT) -> onnx.ModelProto:
    """One node of the op and its function; every dimension is dynamic."""
    attributes = VARIANTS[variant]
    taken = INPUTS if "sliding_window" in attributes else INPUTS[:-1]
    types = dict.fromkeys(taken, float_type) | {
        "past_lens": onnx.TensorProto.INT64,
        "tree_mask": onnx.TensorProto.BOOL,
        "positions": onnx.TensorProto.INT64,
    }
    ranks = dict.fromkeys(taken, 4) | {"past_lens": 1, "tree_mask": 3, "positions": 2}
    inputs = [
        helper.make_tensor_value_info(name, types[name], [f"{name}_{axis}" for axis in range(ranks[name])])
        for name in taken
    ]
    node = helper.make_node(
        names.OP_NAME,
        taken,
        ["out"],
        domain=names.OP_DOMAIN,
        plugin_namespace=names.OP_DOMAIN,
        plugin_version=str(names.OP_VERSION),
        **attributes,
    )
    output = helper.make_tensor_value_info("out", float_type, ["batch", "heads", "nodes", "head_dim"])
    function = tree_attention_function(softcap="softcap" in attributes, windowed="sliding_window" in attributes)
    return helper.make_model(
        helper.make_graph([node], "op", inputs, [output]),
        functions=[ir.to_proto(function)],
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(names.OP_DOMAIN, names.OP_VERSION)],
        ir_version=10,
    )


@cache
def session(variant: str) -> Any:
    return onnxruntime.InferenceSession(make_model(variant).SerializeToString(), providers=["CPUExecutionProvider"])


def run_torch(values: Operands, attributes: dict[str, Any]) -> Any:
    tensors: dict[str, Any] = {name: torch.from_numpy(value) for name, value in values.items()}
    defaults = {"softcap": 0.0, "sliding_window": 0, "positions": None}
    return reference(AttentionCall(**(defaults | tensors | attributes))).numpy()


@pytest.mark.parametrize("float_type", [onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16])
@pytest.mark.parametrize("variant", VARIANTS)
def test_body_is_valid_onnx(variant: str, float_type: int):
    onnx.checker.check_model(make_model(variant, float_type), full_check=True)


@pytest.mark.parametrize("variant", VARIANTS)
@given(drawn=operands())
@settings(max_examples=60, deadline=None)
def test_body_and_pytorch_equal_the_definition(variant: str, drawn: Operands):
    attributes = VARIANTS[variant]
    values = inputs_of(drawn, attributes)
    expected = tree_attention(**values, **attributes)

    np.testing.assert_allclose(session(variant).run(None, values)[0], expected, atol=2e-6)
    np.testing.assert_allclose(run_torch(values, attributes), expected, atol=2e-6)


@pytest.mark.parametrize("variant", VARIANTS)
def test_unused_buffer_rows_may_hold_anything_finite(variant: str):
    values = inputs_of(make_operands(5, 2, 2, 2, 4, 2, 9), VARIANTS[variant])
    expected = session(variant).run(None, values)[0]
    for sequence, committed in enumerate(values["past_lens"]):
        values["past_key"][sequence, :, committed + 2 :] = 1e6
        values["past_value"][sequence, :, committed + 2 :] = 1e6
    np.testing.assert_array_equal(session(variant).run(None, values)[0], expected)
