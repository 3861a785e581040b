"""Engine directories: what they hold, when they are made, and what is left when they are not."""

import dataclasses
import json
import os
import shutil
import sys

import pytest

import spec_trt
from spec_trt.builder import ort_backend
from spec_trt.builder.build import build_engine
from spec_trt.builder.config import BuildConfig
from spec_trt.errors import BackendError, BuildError, ConfigError, ManifestError
from spec_trt.export.bundle import export_bundle
from spec_trt.export.config import ExportConfig
from spec_trt.files import sha256
from spec_trt.manifest import load_manifest


@pytest.fixture
def bundle(text_bundle, tmp_path):
    return shutil.copytree(text_bundle, tmp_path / "bundle")


@pytest.fixture
def config(bundle, tmp_path):
    return BuildConfig(bundle=bundle, out=tmp_path / "engine", precision="int8")


def engine_of(directory):
    engine = load_manifest(directory).engine
    assert engine is not None
    return engine


def change(config, **changes):
    return dataclasses.replace(config, **changes)


def test_manifest_says_what_made_the_engine(config, bundle):
    import onnxruntime

    built = build_engine(config)
    assert built.fresh
    manifest = load_manifest(config.out, verify=True)
    assert manifest == built.manifest
    source = load_manifest(bundle)
    assert manifest.graphs == source.graphs
    assert manifest.model == source.model
    assert manifest.engine is not None
    assert (manifest.engine.backend, manifest.engine.precision) == ("ort", "int8")
    assert manifest.engine.library_version == onnxruntime.__version__
    assert manifest.engine.builder_version == spec_trt.__version__
    assert manifest.engine.bundle_sha256 == sha256(bundle / "manifest.json")
    assert manifest.engine.options["calibration"].startswith("built-in ")
    tokenizer = {facts.path for facts in source.files} - {"base.onnx", "base.onnx.data"}
    assert {facts.path for facts in manifest.files} == tokenizer | {"base.onnx", "base.onnx.data"}
    assert all((config.out / path).read_bytes() == (bundle / path).read_bytes() for path in tokenizer)


def test_building_again_does_nothing(config):
    build_engine(config)
    before = (config.out / "manifest.json").stat()
    assert not build_engine(config).fresh
    assert (config.out / "manifest.json").stat() == before


def test_other_settings_need_force(config):
    build_engine(config)
    other = change(config, precision="fp32")
    with pytest.raises(ConfigError, match=r"other precision, options: replace it with --force"):
        build_engine(other)
    assert engine_of(config.out).precision == "int8"
    assert build_engine(change(other, force=True)).fresh
    assert engine_of(config.out).precision == "fp32"


def test_changed_bundle_needs_force(config, bundle):
    build_engine(config)
    text = (bundle / "manifest.json").read_text()
    (bundle / "manifest.json").write_text(text + "\n")
    with pytest.raises(ConfigError, match="bundle_sha256"):
        build_engine(config)


def test_building_again_mends_a_damaged_engine(config):
    build_engine(config)
    (config.out / "base.onnx.data").write_bytes(b"short")
    with pytest.raises(ManifestError, match=r"base\.onnx\.data has 5 bytes"):
        load_manifest(config.out)
    assert build_engine(config).fresh
    load_manifest(config.out, verify=True)
    assert not build_engine(change(config, force=True)).fresh


@pytest.mark.parametrize("force", [False, True])
def test_what_is_no_engine_is_never_replaced(config, bundle, force):
    config.out.mkdir()
    (config.out / "precious").write_text("x")
    with pytest.raises(ConfigError, match="is no engine directory"):
        build_engine(change(config, force=force))
    assert (config.out / "precious").read_text() == "x"
    with pytest.raises(ConfigError, match="is no engine directory"):
        build_engine(change(config, out=bundle, force=force))


def test_damaged_bundles_are_refused(config, bundle, tmp_path):
    with pytest.raises(ManifestError, match="is not a directory"):
        build_engine(change(config, bundle=tmp_path / "absent"))
    data = bundle / "base.onnx.data"
    content = data.read_bytes()
    data.write_bytes(content[:-1])
    with pytest.raises(ManifestError, match="damaged or cut short"):
        build_engine(config)
    data.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ManifestError, match="sha256 differs"):
        build_engine(change(config, verify=True))
    (bundle / "manifest.json").write_text("{")
    with pytest.raises(ManifestError, match="is damaged"):
        build_engine(config)
    assert not config.out.exists()


def test_graph_that_is_not_onnx_is_refused(config, bundle):
    graph = bundle / "base.onnx"
    graph.write_bytes(b"\xff" * graph.stat().st_size)
    with pytest.raises(BuildError, match="can't be read as ONNX"):
        build_engine(config)
    assert not config.out.exists()


def test_bundle_may_be_of_hard_links(config, bundle, tmp_path):
    linked = shutil.copytree(bundle, tmp_path / "linked", copy_function=os.link)
    built = build_engine(change(config, bundle=linked, out=tmp_path / "other")).manifest
    assert built.files == build_engine(config).manifest.files


def test_weights_outside_of_the_bundle_are_refused(config, bundle, tmp_path):
    shutil.copyfile(bundle / "base.onnx.data", tmp_path / "outside.dat")
    graph = (bundle / "base.onnx").read_bytes()
    (bundle / "base.onnx").write_bytes(graph.replace(b"base.onnx.data", b"../outside.dat"))
    with pytest.raises(BuildError, match=r"base\.onnx has weights outside of its bundle, in .*outside\.dat: export"):
        build_engine(config)


def test_engine_is_no_bundle(config, tmp_path):
    build_engine(config)
    with pytest.raises(ManifestError, match="is an engine already"):
        build_engine(change(config, bundle=config.out, out=tmp_path / "other"))


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_interrupted_build_leaves_nothing(config, monkeypatch, error, tmp_path):
    def fail(*_):
        raise error

    monkeypatch.setattr(ort_backend, "smoke_test", fail)
    with pytest.raises((KeyboardInterrupt, spec_trt.errors.SpecTrtError)):
        build_engine(config)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle"]


def test_weights_that_are_not_finite_are_found(config, bundle):
    import numpy as np
    import onnx_ir as ir

    model = ir.load(bundle / "base.onnx")
    norm = next(value for name, value in model.graph.initializers.items() if "norm" in name)
    norm.const_value = ir.tensor(np.full(32, np.nan, np.float32), name=norm.name)
    ir.external_data.load_to_model(model)
    ir.save(model, bundle / "base.onnx", external_data="base.onnx.data")
    manifest = json.loads((bundle / "manifest.json").read_text())
    for facts in manifest["files"]:
        facts["bytes"] = (bundle / facts["path"]).stat().st_size
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BuildError, match="not finite"):
        build_engine(change(config, precision="fp32"))


def test_missing_onnxruntime_names_both_extras(config, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(BackendError, match=r"spec-trt\[cpu\].*spec-trt\[gpu\]"):
        build_engine(config)


def test_calibration_text_changes_the_engine(config, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("zzzz zzzz\n\n9999")
    build_engine(config)
    other = change(config, out=tmp_path / "other", calibration=text)
    build_engine(other)
    assert engine_of(other.out).options["calibration"].startswith("file ")
    assert (other.out / "base.onnx.data").read_bytes() != (config.out / "base.onnx.data").read_bytes()


def test_bundle_without_tokenizer_is_calibrated_on_random_ids(config, family_bundle):
    assert build_engine(change(config, bundle=family_bundle("llama"))).fresh


@pytest.mark.parametrize(
    "settings", [{"backend": "openvino"}, {"precision": "fp8"}, {"precision": "fp32", "calibration": "x"}], ids=str
)
def test_settings_are_checked(settings, tmp_path):
    with pytest.raises(ConfigError):
        BuildConfig(bundle=tmp_path, out=tmp_path, **settings)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_half_precision_bundles_become_float32_engines(family_model, tmp_path, dtype):
    export_bundle(ExportConfig(model=str(family_model("llama")), output=tmp_path / "bundle", dtype=dtype, check=False))
    manifest = build_engine(BuildConfig(bundle=tmp_path / "bundle", out=tmp_path / "engine")).manifest
    graph = manifest.graphs["base"]
    assert manifest.model.dtype == "fp32"
    assert {tensor.dtype for tensor in (*graph.inputs, *graph.outputs)} == {"int64", "bool", "float32"}
