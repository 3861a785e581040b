"""Draft heads' graphs in engines: what they compute, in which precision, and what they cost."""

from functools import cache

import numpy as np
import onnx_ir as ir
import pytest

from spec_trt import names
from spec_trt.builder.build import build_engine
from spec_trt.builder.config import BuildConfig
from spec_trt.builder.linear import ROTATION, find_linears
from spec_trt.builder.onnxruntime_session import OrtGraph
from spec_trt.builder.patterns import is_weight
from spec_trt.builder.smoke import smoke_test
from spec_trt.errors import BuildError
from spec_trt.manifest import load_manifest
from spec_trt.profile.draft_costs import measure_heads
from spec_trt.runtime.engine import Engine
from tests.builder.graphs import make_graph, random_array

GRAPHS = [("medusa", names.MEDUSA), ("medusa", names.EAGLE), ("eagle3", names.EAGLE), ("eagle3", names.EAGLE_FUSE)]
BATCH, PAST, WINDOW = 2, 9, 4
on_every_graph = pytest.mark.parametrize(("kind", "name"), GRAPHS)


@pytest.fixture(scope="module")
def bundle(request):
    return lambda kind: request.getfixturevalue(f"{kind}_bundle")


@pytest.fixture(scope="module")
def engine(bundle, tmp_path_factory):
    root = tmp_path_factory.mktemp("engines")

    @cache
    def make(kind, head_precision, precision="fp32"):
        out = root / f"{kind}-{head_precision}-{precision}"
        config = BuildConfig(bundle=bundle(kind), out=out, precision=precision, head_precision=head_precision)
        build_engine(config)
        return out

    return make


def open_graph(directory, name):
    return OrtGraph(directory / load_manifest(directory).graphs[name].file, threads=1)


def make_feeds(graph, nodes, past=PAST):
    """A ragged batch whose passes see tentative rows, where the graph has a cache."""
    random = np.random.default_rng(1)
    window = nodes + min(WINDOW, past)
    mask = random.random((BATCH, nodes, window)) < 0.6
    mask[:, range(nodes), range(window - nodes, window)] = True
    known = {
        names.INPUT_IDS: random.integers(0, 97, (BATCH, nodes)),
        names.POSITION_IDS: random.integers(0, 64, (BATCH, nodes)),
        names.PAST_LENS: np.array([past - (window - nodes), (past - (window - nodes)) // 2]),
        names.TREE_MASK: mask,
        **{name: random_array(BATCH, item.shape[1], past, item.shape[3], seed=3) for name, item in graph.inputs.items()
           if name in graph.cache_names},
    }  # fmt: skip
    return {
        name: known[name] if name in known else random_array(BATCH, nodes, item.shape[-1], seed=2)
        for name, item in graph.inputs.items()
    }


def run(graph, feeds):
    outputs = [item.name for item in graph.session.get_outputs()]
    return dict(zip(outputs, graph.run(feeds, outputs), strict=True))


@on_every_graph
@pytest.mark.parametrize(("nodes", "past"), [(1, PAST), (6, PAST), (3, 0)])
def test_fp32_graph_equals_the_bundles(bundle, engine, kind, name, nodes, past):
    before, after = open_graph(bundle(kind), name), open_graph(engine(kind, "fp32"), name)
    feeds = make_feeds(before, nodes, past)
    expected, found = run(before, feeds), run(after, feeds)
    assert list(expected) == list(found)
    for output, array in expected.items():
        assert found[output].dtype == array.dtype
        np.testing.assert_allclose(found[output], array, rtol=1e-4, atol=1e-5, err_msg=output)


@on_every_graph
def test_quantized_graph_is_close(bundle, engine, kind, name):
    before, after = open_graph(bundle(kind), name), open_graph(engine(kind, "int8"), name)
    feeds = make_feeds(before, 32)
    expected, found = run(before, feeds), run(after, feeds)
    for output, array in expected.items():
        if output == names.TOKEN_IDS:
            assert (found[output][..., 0] == array[..., 0]).mean() > 0.9
        else:
            assert np.linalg.norm(found[output] - array) < 0.05 * np.linalg.norm(array), output


@on_every_graph
def test_every_weight_of_a_quantized_graph_is_in_integers(engine, kind, name):
    directory = engine(kind, "int8")
    graph = ir.load(directory / load_manifest(directory).graphs[name].file).graph
    assert not find_linears(graph)
    matrices = [value for value in graph.initializers.values() if is_weight(value, 2)]
    assert [
        value
        for value in matrices
        if not str(value.name).endswith(".scales") and not str(value.name).startswith(ROTATION)
    ] == []


@on_every_graph
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_node_is_bit_identical_whatever_shares_its_pass(engine, kind, name, precision):
    graph = open_graph(engine(kind, precision), name)
    feeds = make_feeds(graph, 8)
    if names.TREE_MASK in feeds:  # no node sees another
        feeds[names.TREE_MASK][:, :, -8:] = np.eye(8, dtype=bool)
    others = {key: value.copy() for key, value in feeds.items()}
    for key in (names.FEATURES, names.HIDDEN_STATES, names.INPUT_IDS):
        if key in others:
            others[key][:, 1:] = others[key][:, :0:-1]
    for key in (names.FEATURES, names.HIDDEN_STATES):
        if key in others:
            others[key][:, 1:] *= 1000
    expected, found = run(graph, feeds), run(graph, others)
    for output, array in expected.items():
        axis = 2 if output.startswith("new_") else 1
        assert np.array_equal(found[output].take(0, axis), array.take(0, axis)), output
        assert not np.array_equal(found[output], array), output


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_manifest_says_how_each_head_is_built(bundle, engine, precision):
    manifest = load_manifest(engine("eagle3", precision), verify=True)
    source = load_manifest(bundle("eagle3"))
    assert manifest.graphs == source.graphs
    assert manifest.heads == source.heads
    assert manifest.engine is not None
    assert manifest.engine.precision == "fp32"
    head = {"precision": "fp32"} if precision == "fp32" else {"precision": "int8", "block": 32}
    assert manifest.engine.options["heads"] == {names.EAGLE: head, names.EAGLE_FUSE: head}


def test_heads_are_in_int8_whatever_the_base_computes_in(engine):
    expected = (engine("medusa", "int8") / "eagle.onnx.data").read_bytes()
    assert (engine("medusa", None) / "eagle.onnx.data").read_bytes() == expected
    assert (engine("medusa", None, "int4") / "eagle.onnx.data").read_bytes() == expected


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("a = Log (zero)  log_probs = Mul (hidden_states, a)  token_ids = Abs (none)", "not finite"),
        ("log_probs = Abs (hidden_states)  token_ids = Cast <to = 7> (ids)", r"proposes token 97, expected .* 0 to 96"),
    ],
)
def test_damaged_heads_are_found(tmp_path, body, message):
    model = make_graph(
        f"g (float[b, n, 4] hidden_states) => (int64[1] token_ids, float[b, n, 4] log_probs) {{ {body} }}",
        zero=np.zeros(1, np.float32),
        ids=np.array([97], np.int32),
        none=np.array([0]),
    )
    model.graph.opset_imports.pop(names.OP_DOMAIN)
    ir.save(model, tmp_path / "medusa.onnx")
    with pytest.raises(BuildError, match=message):
        smoke_test(tmp_path / "medusa.onnx", 97)


def test_a_profile_measures_the_heads(engine):
    with Engine.load(engine("eagle3", "int8"), threads=1) as loaded:
        assert measure_heads(loaded, past=16, rounds=2)["eagle"].fixed_ms > 0
    with Engine.load(engine("medusa", "int8"), threads=1) as loaded:
        assert set(measure_heads(loaded, past=16, rounds=2)) == {"medusa", "eagle"}
