"""TensorRT for RTX's engines, built with no GPU: what they hold, what is refused, what a failure leaves."""

import dataclasses
import json
import os
import shutil
import signal
import sys

import onnx
import pytest
from onnx import TensorProto, helper

from spec_trt import names
from spec_trt.builder.build import build_engine
from spec_trt.builder.config import BuildConfig, TensorRtOptions
from spec_trt.builder.tensorrt import child
from spec_trt.builder.tensorrt.network_report import load_report, report_file
from spec_trt.builder.tensorrt.settings import choose_settings
from spec_trt.cli import main
from spec_trt.errors import BackendError, BuildError, ConfigError, ManifestError
from spec_trt.export.bundle import export_bundle
from spec_trt.export.config import ExportConfig
from spec_trt.manifest import load_manifest
from spec_trt.plugins.tree_attention.plugin import PLUGIN_VERSION
from tests.heads.checkpoints import write_eagle3, write_medusa_v2

pytest.importorskip("tensorrt_rtx")

LAYERS = 7  # of `deep_model`
SMALL = TensorRtOptions(compute_capabilities=("8.9",), max_length=64, max_nodes=16, opt_nodes=8, prefill_chunk=32)


@pytest.fixture(scope="session")
def fp16_bundle(tmp_path_factory, deep_model):
    """A tiny model with Medusa heads and an EAGLE-3 draft, in fp16."""
    root = tmp_path_factory.mktemp("fp16")
    write_medusa_v2(root / "medusa", heads=2)
    write_eagle3(root / "eagle")
    config = ExportConfig(
        model=str(deep_model),
        output=root / "bundle",
        dtype="fp16",
        medusa=root / "medusa",
        eagle=root / "eagle",
        check=False,
    )
    export_bundle(config)
    return root / "bundle"


@pytest.fixture(scope="session")
def plugin_engine(tmp_path_factory, fp16_bundle):
    out = tmp_path_factory.mktemp("plugin") / "engine"
    build_engine(BuildConfig(bundle=fp16_bundle, out=out, backend="trt-rtx", tensorrt=SMALL))
    return out


@pytest.fixture
def config(text_bundle, tmp_path):
    """A build of a bundle that the test may damage."""
    bundle = shutil.copytree(text_bundle, tmp_path / "bundle")
    return BuildConfig(bundle=bundle, out=tmp_path / "engine", backend="trt-rtx", tensorrt=SMALL)


def change(config, **changes):
    own = {item.name for item in dataclasses.fields(TensorRtOptions)}
    options = dataclasses.replace(config.tensorrt, **{name: changes.pop(name) for name in own & set(changes)})
    return dataclasses.replace(config, tensorrt=options, **changes)


def facts_of(manifest):
    assert manifest.engine is not None
    return manifest.engine.tensorrt


def replace_graph(bundle, model):
    """Put another graph in place of the base, the manifest's sizes in order."""
    onnx.save(model, bundle / "base.onnx")
    manifest = json.loads((bundle / "manifest.json").read_text())
    for facts in manifest["files"]:
        facts["bytes"] = (bundle / facts["path"]).stat().st_size
    (bundle / "manifest.json").write_text(json.dumps(manifest))


def test_engine_directory_says_what_it_was_built_for(plugin_engine, fp16_bundle):
    import tensorrt_rtx

    manifest, bundle = load_manifest(plugin_engine, verify=True), load_manifest(fp16_bundle)
    engine = manifest.engine
    assert engine is not None
    assert (engine.backend, engine.precision, engine.library_version) == ("trt-rtx", "fp16", tensorrt_rtx.__version__)
    assert manifest.model == bundle.model
    for name, graph in manifest.graphs.items():
        assert graph == dataclasses.replace(bundle.graphs[name], file=f"{name}.engine")
    facts = facts_of(manifest)
    assert (facts.attention, facts.plugin_version) == ("plugin", PLUGIN_VERSION)
    assert facts.compute_capabilities == ["8.9"]
    assert (facts.max_length, facts.max_batch, facts.max_nodes, facts.prefill_chunk) == (64, 1, 16, 32)
    assert "Engine generation completed" in (plugin_engine / "build.log").read_text()
    assert (plugin_engine / "tokenizer.json").read_bytes() == (fp16_bundle / "tokenizer.json").read_bytes()
    assert not list(plugin_engine.glob("*.onnx*"))


def test_only_the_number_of_nodes_changes_within_a_profile(plugin_engine):
    facts = facts_of(load_manifest(plugin_engine))
    assert list(facts.profiles) == [names.BASE, names.MEDUSA, names.EAGLE, names.EAGLE_FUSE]
    for profiles in facts.profiles.values():
        assert tuple(profiles) == names.PROFILES
    decode, prefill = facts.profiles[names.BASE].values()
    assert decode[names.INPUT_IDS] == [[1, 1], [1, 8], [1, 16]]
    assert decode[names.TREE_MASK] == [[1, 1, 16], [1, 8, 16], [1, 16, 16]]
    assert decode[names.past_key(LAYERS - 1)] == [[1, 2, 64, 8]] * 3
    assert prefill[names.INPUT_IDS] == [[1, 1], [1, 32], [1, 32]]
    assert prefill[names.LOGITS_ROWS] == [[1, 0], [1, 1], [1, 1]]
    assert [facts.window(names.BASE, profile) for profile in names.PROFILES] == [16, 32]
    assert [facts.window(names.EAGLE, profile) for profile in names.PROFILES] == [32, 32]
    assert (facts.capacity(names.BASE), facts.capacity(names.EAGLE)) == (64, 80)


def test_every_attention_layer_is_the_plugin(plugin_engine):
    graphs = load_manifest(plugin_engine).graphs
    plugins = {name: load_report(plugin_engine / report_file(name)).plugins for name in graphs}
    assert plugins == {
        names.BASE: {names.OP_NAME: LAYERS},
        names.MEDUSA: {},
        names.EAGLE: {names.OP_NAME: 1},
        names.EAGLE_FUSE: {},
    }


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
def test_native_attention_in_every_type(family_model, tmp_path, dtype):
    export_bundle(ExportConfig(model=str(family_model("llama")), output=tmp_path / "bundle", dtype=dtype, check=False))
    options = dataclasses.replace(SMALL, attention="native", compute_capabilities=("12.0", "8.9"), max_batch=2)
    config = BuildConfig(bundle=tmp_path / "bundle", out=tmp_path / "engine", backend="trt-rtx", tensorrt=options)
    manifest = build_engine(config).manifest
    report = load_report(tmp_path / "engine" / report_file(names.BASE))
    assert report.plugins == {}
    assert report.layers["ATTENTION_INPUT"] == 2
    assert report.engine_bytes == (tmp_path / "engine" / "base.engine").stat().st_size > report.weights_bytes
    assert manifest.engine is not None
    assert manifest.engine.precision == manifest.model.dtype == dtype
    facts = facts_of(manifest)
    assert (facts.attention, facts.plugin_version, facts.compute_capabilities) == ("native", None, ["8.9", "12.0"])
    assert facts.profiles[names.BASE][names.DECODE][names.PAST_LENS] == [[1], [1], [2]]


@pytest.mark.parametrize("attention", ["plugin", "native"])
def test_softcap_and_windows(family_bundle, tmp_path, attention):
    options = dataclasses.replace(SMALL, attention=attention)
    out = tmp_path / "engine"
    build_engine(BuildConfig(bundle=family_bundle("gemma2"), out=out, backend="trt-rtx", tensorrt=options))
    assert load_report(out / report_file(names.BASE)).plugins == ({names.OP_NAME: 2} if attention == "plugin" else {})


def test_building_again_does_nothing_and_other_settings_need_force(plugin_engine, fp16_bundle):
    config = BuildConfig(bundle=fp16_bundle, out=plugin_engine, backend="trt-rtx", tensorrt=SMALL)
    before = (plugin_engine / "manifest.json").stat()
    assert not build_engine(config).fresh
    assert (plugin_engine / "manifest.json").stat() == before
    with pytest.raises(ConfigError, match=r"with other options, max_nodes, profiles: replace it with --force"):
        build_engine(change(config, max_nodes=8, opt_nodes=4))
    with pytest.raises(ConfigError, match=r"with other backend, precision, library_version, options, tensorrt"):
        build_engine(BuildConfig(bundle=fp16_bundle, out=plugin_engine))


def test_gpus_that_the_library_does_not_build_for_are_refused(config):
    with pytest.raises(ConfigError, match=r"compute capability 9\.0: it accepts 7\.5, .*8\.9.*12\.0"):
        build_engine(change(config, compute_capabilities=("8.9", "9.0")))
    with pytest.raises(ConfigError, match=r"no GPU here to build for: name one with --compute-capability, of 7\.5"):
        build_engine(change(config, compute_capabilities=None))
    assert not config.out.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_length": 257}, "--max-length 257 is beyond the model's context of 256 positions"),
        ({"max_nodes": 65}, "--max-nodes 65 is beyond --max-length 64"),
        ({"prefill_chunk": 65}, "--prefill-chunk 65 is beyond --max-length 64"),
        ({"opt_nodes": 17}, "--opt-nodes 17 is beyond --max-nodes 16"),
        ({"opt_batch": 3, "max_batch": 2}, "--opt-batch 3 is beyond --max-batch 2"),
        ({"max_batch": 10**9}, "--max-batch 1000000000 with --max-length 64 needs a cache of .* GB, more than any GPU"),
    ],
    ids=str,
)
def test_sizes_that_do_not_fit_are_refused(config, changes, message):
    with pytest.raises(ConfigError, match=message):
        build_engine(change(config, **changes))


@pytest.mark.parametrize(
    ("facts", "changes", "message"),
    [
        (
            {"dtype": "bf16"},
            {"compute_capabilities": ("7.5", "8.9")},
            r"bf16 needs .* 8\.0 or later, found 7\.5: export",
        ),
        ({"dtype": "bf16"}, {"compute_capabilities": ("7.5",), "attention": "native"}, r"bf16 needs .*, found 7\.5"),
        (
            {"head_dim": 12},
            {},
            r"head_dim that is a multiple of 8 up to 256, found 12: build with `--attention native`",
        ),
    ],
    ids=str,
)
def test_what_gpu_or_kernel_lack_is_refused_before_the_build(config, facts, changes, message):
    path = config.bundle / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["model"] |= facts
    path.write_text(json.dumps(manifest))
    with pytest.raises(BackendError, match=message):
        build_engine(change(config, **changes))
    assert sorted(path.name for path in config.out.parent.iterdir()) == ["bundle"]


def test_timing_cache_that_cannot_be_written_is_refused_before_the_build(config, tmp_path):
    model = load_manifest(config.bundle).model
    for path in (tmp_path, tmp_path / "absent" / "cache"):
        options = TensorRtOptions(timing_cache=path)
        with pytest.raises(ConfigError, match=r"--timing-cache .* can't be written: expected a file in a directory"):
            choose_settings(dataclasses.replace(config, backend="trt", tensorrt=options), model)


@pytest.mark.parametrize(
    ("backend", "option", "message"),
    [
        ("trt-rtx", {"precision": "int8"}, r"--precision belongs to --backend ort, found trt-rtx: .*export --dtype"),
        ("trt-rtx", {"calibration": "x"}, "--calibration belongs to --backend ort"),
        ("trt-rtx", {"timing_cache": "x"}, "--timing-cache belongs to --backend trt, found trt-rtx: .* times nothing"),
        ("trt", {"compute_capabilities": ("8.9",)}, "--compute-capability belongs to --backend trt-rtx, found trt"),
        ("ort", {"max_nodes": 8}, "--max-nodes belongs to --backend trt and trt-rtx, found ort"),
        ("ort", {"attention": "native"}, "--attention belongs to --backend trt and trt-rtx"),
        ("trt-rtx", {"attention": "flash"}, "no attention 'flash'"),
        ("trt-rtx", {"max_batch": 0}, "--max-batch must be at least 1, found 0"),
        ("trt-rtx", {"compute_capabilities": ("ada",)}, "a compute capability is a number like 8.9, found 'ada'"),
    ],
    ids=str,
)
def test_options_of_another_back_end_are_refused_by_name(tmp_path, backend, option, message):
    with pytest.raises(ConfigError, match=message):
        change(BuildConfig(bundle=tmp_path, out=tmp_path, backend=backend), **option)


def test_op_that_the_library_does_not_know_is_named_and_the_log_kept(config):
    node = helper.make_node("Frobnicate", ["x"], ["y"], domain="elsewhere")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("elsewhere", 1)]
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    replace_graph(config.bundle, helper.make_model(graph, opset_imports=opsets))
    with pytest.raises(BuildError, match=r"can't read base\.onnx: .*Frobnicate.*all that the library said: ") as raised:
        build_engine(config)
    log = config.out.with_name("engine.build.log")
    assert str(log) in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "Frobnicate" in log.read_text()
    assert sorted(path.name for path in config.out.parent.iterdir()) == ["bundle", "engine.build.log"]


def test_graph_that_is_not_onnx_is_refused(config):
    graph = config.bundle / "base.onnx"
    graph.write_bytes(b"\xff" * graph.stat().st_size)
    with pytest.raises(BuildError, match=r"can't read base\.onnx"):
        build_engine(config)
    assert not config.out.exists()


def test_graph_that_is_not_its_manifests_is_refused(config):
    manifest = json.loads((config.bundle / "manifest.json").read_text())
    facts = manifest["graphs"]["base"]
    path = config.bundle / "manifest.json"
    path.write_text(json.dumps(manifest | {"graphs": {"base": facts | {"outputs": facts["outputs"][1:]}}}))
    with pytest.raises(BuildError, match=r"has the output logits, which its manifest does not name"):
        build_engine(config)
    for change_of, message in (
        ({"dtype": "int32"}, r"has no input input_ids of int32"),
        ({"shape": ["batch", "leaves"]}, r"input input_ids of the graph 'base' has a dimension 'leaves'"),
    ):
        first = facts["inputs"][0] | change_of
        path.write_text(json.dumps(manifest | {"graphs": {"base": facts | {"inputs": [first, *facts["inputs"][1:]]}}}))
        with pytest.raises(BuildError, match=message):
            build_engine(config)


def test_damaged_bundle_is_refused(config):
    data = config.bundle / "base.onnx.data"
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(ManifestError, match="damaged or cut short"):
        build_engine(config)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("step", ["base: parse", "base: computing profile costs"])
def test_interrupted_build_leaves_nothing(config, number, step):
    steps = []

    def progress(begun):
        steps.append(begun)
        if begun == step:
            os.kill(os.getpid(), number)

    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a shell it is ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            build_engine(config, progress)
    finally:
        signal.signal(signal.SIGINT, earlier)
    assert step in steps
    assert "base: save" not in steps
    assert sorted(path.name for path in config.out.parent.iterdir()) == ["bundle"]


@pytest.mark.parametrize("attention", ["plugin", "native"])
def test_build_that_fails_names_the_librarys_reason(config, attention):
    with pytest.raises(BuildError, match=r"tensorrt_rtx can't build the graph 'base': .*workspace limit") as raised:
        build_engine(change(config, workspace_bytes=1, attention=attention))
    assert "\n" not in str(raised.value)
    assert not config.out.exists()


def test_node_that_the_plugin_refuses_is_named_by_the_plugin(config):
    model = onnx.load(config.bundle / "base.onnx", load_external_data=False)
    for node in model.graph.node:
        if node.op_type == names.OP_NAME:
            node.attribute.append(helper.make_attribute("sliding_window", 6))
    replace_graph(config.bundle, model)
    refusal = r"^the plugin TreeAttention takes the input `positions` with .* \(all that the library said: .*log\)$"
    with pytest.raises(BackendError, match=refusal):
        build_engine(config)
    assert not config.out.exists()


def test_process_that_ends_before_its_work_is_an_error(config, monkeypatch):
    monkeypatch.setattr(child, "_WORKER", "spec_trt.errors")
    with pytest.raises(BuildError, match=r"ended by itself \(exit code 0\): the library gave no reason"):
        build_engine(config)
    assert not config.out.exists()


def test_missing_libraries_name_their_extra(config, monkeypatch):
    with pytest.raises(BackendError, match=r"TensorRT is not installed: `pip install 'spec-trt\[trt\]'`"):
        build_engine(change(config, backend="trt", compute_capabilities=None))
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    with pytest.raises(BackendError, match=r"TensorRT for RTX is not installed: `pip install 'spec-trt\[trt-rtx\]'`"):
        build_engine(config)


def run(*args):
    """Run the command in this process and return its exit code."""
    try:
        main([str(arg) for arg in args])
    except SystemExit as stop:
        return stop.code
    return 0


def test_command_builds_and_inspect_shows_it(text_bundle, tmp_path, capsys):
    sizes = ("--max-length", 64, "--max-nodes", 16, "--prefill-chunk", 32, "--opt-nodes", 8, "--max-batch", 2)
    options = ("--backend", "trt-rtx", "--compute-capability", "8.9,12.0", *sizes)
    engine = tmp_path / "engine"
    assert run("build", text_bundle, engine, *options, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"engine": str(engine), "built": True}
    assert run("inspect", engine) == 0
    text = capsys.readouterr().out
    for part in (
        "engine (trt-rtx ",
        "compute capability 8.9, 12.0; plugin attention, version 1",
        "at most  64 tokens, 2 sequences, 16 nodes, prefill in chunks of 32",
        "TreeAttention 2",
        "[2, 16, 16]",
        "[2, 2, 64, 8]",
    ):
        assert part in text
    assert run("inspect", engine, "--layers") == 1
    assert "can't load" in capsys.readouterr().err
    assert run("inspect", text_bundle, "--layers") == 1
    assert "is no TensorRT engine" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--compute-capability", "9.0"), "does not build for compute capability 9.0: it accepts 7.5"),
        (("--compute-capability", "8.9", "--precision", "int8"), "--precision belongs to --backend ort"),
        (("--compute-capability", "8.9", "--eval", "x"), "--eval belongs to --backend ort, found trt-rtx"),
        (("--compute-capability", "8.9", "--max-nodes", 500), "--max-nodes 500 is beyond --max-length 256"),
    ],
    ids=str,
)
def test_command_refuses_in_one_line(text_bundle, tmp_path, capsys, options, message):
    assert run("build", text_bundle, tmp_path / "engine", "--backend", "trt-rtx", *options) == 1
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert message in line
    assert not list(tmp_path.iterdir())
