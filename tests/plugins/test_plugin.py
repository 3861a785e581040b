"""The plugin in TensorRT for RTX's own parser and builder, which need no GPU."""

from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
import pytest

from spec_trt import names
from spec_trt.errors import BackendError, BuildError
from spec_trt.plugins.tree_attention.plugin import (
    PLUGIN_VERSION,
    creator_class,
    plugin_class,
    read_attributes,
    tree_attention_plugin,
)
from spec_trt.plugins.tree_attention.support import Attributes
from spec_trt.plugins.tree_attention.tile_sizes import workspace_bytes
from spec_trt.tensorrt import import_tensorrt
from tests.conftest import FamilyPath
from tests.export.test_function_body import make_model

pytest.importorskip("tensorrt_rtx")

FLOATS = {"fp16": onnx.TensorProto.FLOAT16, "bf16": onnx.TensorProto.BFLOAT16, "fp32": onnx.TensorProto.FLOAT}


@pytest.fixture(scope="module")
def trt() -> ModuleType:
    return import_tensorrt("trt-rtx")


def registered(trt: ModuleType) -> bool:
    found = {(one.name, one.plugin_version, one.plugin_namespace) for one in trt.get_plugin_registry().all_creators}
    return ("TreeAttention", PLUGIN_VERSION, "spec_trt") in found


def parse(trt: ModuleType, model: onnx.ModelProto | Path) -> tuple[Any, Any]:
    """A builder and its network."""
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    if isinstance(model, Path):
        assert parser.parse_from_file(str(model)), parser.get_error(0).desc()
    else:
        assert parser.parse(model.SerializeToString()), parser.get_error(0).desc()
    return builder, network


def build(trt: ModuleType, builder: Any, network: Any) -> Any:
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM89, 0)
    return builder.build_serialized_network(network, config)


def build_with_plugin(trt: ModuleType, model: onnx.ModelProto) -> None:
    with tree_attention_plugin(trt) as refusals, refusals.receiving():
        if build(trt, *parse(trt, model)) is None:
            raise BuildError("the library gave no engine")


def plugin_layers(trt: ModuleType, network: Any) -> int:
    return sum(network.get_layer(index).type == trt.LayerType.PLUGIN_V3 for index in range(network.num_layers))


def one_node(variant: str, dtype: str = "fp16", *, heads: int = 4, head_dim: int = 64) -> onnx.ModelProto:
    """The op alone, its sizes fixed."""
    model = make_model(variant, FLOATS[dtype])
    new, cached = [2, 2, 8, head_dim], [2, 2, 32, head_dim]
    shapes = {"query": [2, heads, 8, head_dim], "key": new, "value": new, "past_key": cached, "past_value": cached}
    shapes |= {"past_lens": [2], "tree_mask": [2, 8, 12], "positions": [2, 12]}
    for value in model.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, shapes[value.name], strict=True):
            dim.dim_value = size
    return model


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("variant", ["plain", "window and softcap"])
def test_a_node_becomes_a_plugin_layer_and_builds(variant: str, dtype: str, trt: ModuleType):
    with tree_attention_plugin(trt):
        builder, network = parse(trt, one_node(variant, dtype))
        assert plugin_layers(trt, network) == 1
        assert network.get_output(0).dtype == {"fp16": trt.float16, "bf16": trt.bfloat16, "fp32": trt.float32}[dtype]
        assert tuple(network.get_output(0).shape) == (2, 4, 8, 64)
        assert build(trt, builder, network) is not None


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_every_layer_of_a_bundle_becomes_a_plugin_layer(family: str, family_bundle: FamilyPath, trt: ModuleType):
    graph = family_bundle(family) / "base.onnx"
    with tree_attention_plugin(trt):
        _, network = parse(trt, graph)
    assert plugin_layers(trt, network) == 2
    _, inlined = parse(trt, graph)
    assert plugin_layers(trt, inlined) == 0


def test_the_plugin_is_known_while_the_context_lasts(trt: ModuleType):
    assert not registered(trt)
    with tree_attention_plugin(trt):
        with tree_attention_plugin(trt):
            assert registered(trt)
        assert registered(trt)
    assert not registered(trt)
    with pytest.raises(KeyError), tree_attention_plugin(trt):
        raise KeyError
    assert not registered(trt)


def test_contexts_may_end_in_any_order(trt: ModuleType):
    first, second = ExitStack(), ExitStack()
    first.enter_context(tree_attention_plugin(trt))
    second.enter_context(tree_attention_plugin(trt))
    first.close()
    assert registered(trt)
    second.close()
    assert not registered(trt)


def test_another_plugin_of_the_name_is_refused(trt: ModuleType):
    class Other(trt.IPluginCreatorV3One):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.IPluginCreatorV3One.__init__(self)
            self.name, self.plugin_version, self.plugin_namespace = "TreeAttention", PLUGIN_VERSION, "spec_trt"
            self.field_names = trt.PluginFieldCollection([])

    other, registry = Other(), trt.get_plugin_registry()
    registry.register_creator(other, "spec_trt")
    try:
        with pytest.raises(BackendError, match="has another plugin spec_trt::TreeAttention 1"):
            ExitStack().enter_context(tree_attention_plugin(trt))
    finally:
        registry.deregister_creator(other)


def test_a_refusal_is_told_once(trt: ModuleType):
    """An outer context, of an engine that runs, is none of a failed build's business."""
    with tree_attention_plugin(trt):
        with pytest.raises(BackendError, match="found 12"):
            build_with_plugin(trt, one_node("plain", head_dim=12))
        build_with_plugin(trt, one_node("plain"))


def make_plugin(trt: ModuleType) -> Any:
    creator = next(one for one in trt.get_plugin_registry().all_creators if one.name == names.OP_NAME)
    return creator.create_plugin(names.OP_NAME, creator.field_names, trt.TensorRTPhase.RUNTIME)


def break_a_pass(trt: ModuleType, plugin: Any) -> Exception:
    """What TensorRT would see, and not hand on."""
    described = [describe(trt, trt.float16, (1,)).desc]
    with pytest.raises(TypeError) as raised:
        plugin.attach_to_context(None).enqueue(described, described, [256], [256], 256, 0)
    return raised.value


def test_what_a_pass_raises_is_kept_for_who_runs_it(trt: ModuleType):
    with tree_attention_plugin(trt) as failure:
        assert failure() is None
        with failure.receiving():
            plugin = make_plugin(trt)
        raised = break_a_pass(trt, plugin)
        assert failure() is raised
        assert failure() is None


def test_engines_have_their_failures_to_themselves(trt: ModuleType):
    with tree_attention_plugin(trt) as one, tree_attention_plugin(trt) as other:
        with other.receiving(), one.receiving():
            plugins = [make_plugin(trt)]
        with one.receiving(), other.receiving():
            plugins.append(make_plugin(trt))
        raised = [break_a_pass(trt, plugin) for plugin in plugins]
        assert (one(), other()) == tuple(raised)
        assert one() is other() is None


def without_positions() -> onnx.ModelProto:
    model = one_node("window")
    del model.graph.node[0].input[7:], model.graph.input[7:]
    return model


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (one_node("plain", head_dim=12), "a head_dim that is a multiple of 8 up to 256, found 12"),
        (one_node("plain", head_dim=264), "a head_dim that is a multiple of 8 up to 256, found 264"),
        (one_node("plain", heads=3), "query heads that are a multiple of the key heads, found 3 and 2"),
        (without_positions(), "the input `positions` with the attribute sliding_window, and only then"),
    ],
    ids=["head_dim 12", "head_dim 264", "heads", "positions"],
)
def test_what_the_kernel_cannot_do_is_refused_by_name(
    model: onnx.ModelProto, reason: str, trt: ModuleType, capfd: pytest.CaptureFixture[str]
):
    with pytest.raises(BackendError) as raised:
        build_with_plugin(trt, model)
    assert reason in str(raised.value)
    assert isinstance(raised.value.__cause__, BuildError)
    assert "Exception caught" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "attributes", [Attributes(scale=0.125), Attributes(scale=0.3, softcap=50.0, sliding_window=2**31 - 1)]
)
def test_attributes_survive_serialization(attributes: Attributes, trt: ModuleType):
    creator = creator_class(trt)()
    stored = plugin_class(trt)(attributes, []).get_fields_to_serialize()
    loaded = creator.create_plugin("TreeAttention", stored, trt.TensorRTPhase.RUNTIME).attributes
    assert (loaded.softcap, loaded.sliding_window) == (attributes.softcap, attributes.sliding_window)
    assert loaded.scale == pytest.approx(attributes.scale, rel=1e-6)


def test_attributes_that_a_node_lacks_have_their_defaults(trt: ModuleType):
    fields = [field for field in creator_class(trt)().field_names if field.name == "scale"]
    assert read_attributes(fields) == Attributes(scale=0.0)


def describe(trt: ModuleType, dtype: Any, shape: tuple[int, ...]) -> Any:
    described = trt.DynamicPluginTensorDesc()
    described.desc.type, described.desc.format = dtype, trt.TensorFormat.LINEAR
    described.max = shape
    return described


def test_types_follow_the_query(trt: ModuleType):
    plugin = plugin_class(trt)(Attributes(scale=1.0, sliding_window=4), [])

    def supported(query: Any, **changed: Any) -> list[bool]:
        types = dict.fromkeys(("query", "key", "value", "past_key", "past_value"), query)
        types |= {"past_lens": trt.int64, "tree_mask": trt.bool, "positions": trt.int64, "out": query} | changed
        every = [describe(trt, dtype, (1,)) for dtype in types.values()]
        return [plugin.supports_format_combination(place, every, 8) for place in range(9)]

    for dtype in (trt.float16, trt.bfloat16, trt.float32):
        assert all(supported(dtype))
    assert not supported(trt.int8)[0]
    assert supported(trt.float16, key=trt.float32, past_lens=trt.int32, out=trt.bfloat16) == [
        True, False, True, True, True, False, True, True, False,
    ]  # fmt: skip


def test_the_workspace_is_that_of_the_largest_pass(trt: ModuleType):
    plugin = plugin_class(trt)(Attributes(scale=1.0), [])
    inputs = [describe(trt, trt.float16, (4, 9, 64, 128)), describe(trt, trt.float16, (4, 3, 64, 128))]
    assert plugin.get_workspace_size(inputs, []) == workspace_bytes(
        batch=4, heads=9, kv_heads=3, nodes=64, head_dim=128
    )


def test_the_plugin_goes_by_the_op_s_own_names(trt: ModuleType):
    creator = creator_class(trt)()
    plugin = creator.create_plugin("TreeAttention", creator.field_names, trt.TensorRTPhase.BUILD)
    copies = [plugin, plugin.clone(), plugin.attach_to_context(None)]
    assert {(one.plugin_name, one.plugin_version, one.plugin_namespace) for one in copies} == {
        (names.OP_NAME, str(names.OP_VERSION), names.OP_DOMAIN)
    }
