"""Raising half-precision graphs to float32."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from spec_trt.float32 import raise_to_float32

TEXT = """
<ir_version: 10, opset_import: ["" : 23, "local" : 1]>
graph (HALF[rows, 4] x, bool keep) => (HALF[rows, 4] y) <HALF[4] weight = {BITS1, BITS2, BITS3, BITS4}>
{
    x_float = Cast <to = 1> (x)
    x_half = Cast <to = TYPE> (x_float)
    one = Constant <value = HALF {BITS1}> ()
    four = Constant <value_ints = [4]> ()
    zeros = ConstantOfShape <value = HALF[1] {0}> (four)
    shifted = Add (x_half, one)
    scaled = local.scale (shifted, weight)
    y = If (keep) <
        then_branch = kept () => (HALF[rows, 4] then_y) { then_y = Cast <to = TYPE> (scaled) },
        else_branch = dropped () => (HALF[rows, 4] else_y) { else_y = Mul (scaled, zeros) }
    >
}
<domain: "local", opset_import: ["" : 23]>
scale (a, b) => (c)
{
    two = Constant <value = HALF {BITS2}> ()
    b_half = Cast <to = TYPE> (b)
    ab = Mul (a, b_half)
    c = Mul (ab, two)
}
"""

# ONNX's text form writes half-precision numbers as their bits; here those of 1, 2, 3, 4.
KINDS = {
    "fp16": ("float16", 10, (15360, 16384, 16896, 17408)),
    "bf16": ("bfloat16", 16, (16256, 16384, 16448, 16512)),
    "fp32": ("float", 1, (1, 2, 3, 4)),
}


def make_model(kind: str) -> ir.Model:
    name, number, bits = KINDS[kind]
    text = TEXT.replace("HALF", name).replace("TYPE", str(number))
    for value, pattern in enumerate(bits, start=1):
        text = text.replace(f"BITS{value}", str(pattern))
    return ir.from_proto(onnx.parser.parse_model(text))


@pytest.mark.parametrize("kind", ["fp16", "bf16"])
def test_everything_becomes_float32(kind: str):
    model = make_model(kind)
    raise_to_float32(model)

    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    assert not [text for text in ("float16", "to = 10", "to = 16") if text in onnx.printer.to_text(proto)]
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.arange(8, dtype=np.float32).reshape(2, 4) + np.float32(1e-4)  # not to be had in half precision
    expected = (x + 1) * [2, 4, 6, 8]
    np.testing.assert_allclose(session.run(None, {"x": x, "keep": np.array(True)})[0], expected, rtol=1e-6)
    assert not session.run(None, {"x": x, "keep": np.array(False)})[0].any()


def test_a_float32_graph_stays_as_it_is():
    model = make_model("fp32")
    before = ir.to_proto(model).SerializeToString()
    raise_to_float32(model)
    assert ir.to_proto(model).SerializeToString() == before


def test_weights_are_converted_only_when_read():
    model = make_model("fp16")
    raise_to_float32(model)
    weight = model.graph.initializers["weight"].const_value
    assert isinstance(weight, ir.LazyTensor)
    np.testing.assert_array_equal(weight.numpy(), np.array([1, 2, 3, 4], np.float32))
