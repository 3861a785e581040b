import dataclasses
import json

import pytest

from spec_trt.errors import ManifestError
from spec_trt.manifest import (
    EngineFacts,
    GraphFacts,
    HeadFacts,
    Manifest,
    SourceFacts,
    TensorFacts,
    describe_files,
    load_manifest,
    save_manifest,
)
from tests.runtime.fake_session import fake_facts


def make_manifest(**changes):
    manifest = Manifest(
        model=fake_facts(),
        graphs={
            "base": GraphFacts(
                file="base.onnx",
                inputs=[TensorFacts(name="input_ids", dtype="int64", shape=["batch", "nodes"])],
                outputs=[],
            )
        },
        heads=HeadFacts(),
        source=SourceFacts(
            model="tiny",
            revision=None,
            exporter_version="0.1.0",
            torch_version="2",
            transformers_version="5",
        ),
        files=[],
    )
    return dataclasses.replace(manifest, **changes)


def make_engine_facts(**changes):
    facts = EngineFacts(
        backend="ort",
        precision="fp32",
        library_version="1.0.0",
        builder_version="0.1.0",
        options={},
        bundle_sha256="0" * 64,
    )
    return dataclasses.replace(facts, **changes)


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "base.onnx").write_bytes(b"graph")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "data").write_bytes(b"weights")
    save_manifest(make_manifest(files=describe_files(tmp_path), engine=make_engine_facts()), tmp_path)
    return tmp_path


def test_round_trip(directory):
    manifest = load_manifest(directory, verify=True)
    assert manifest == make_manifest(files=describe_files(directory), engine=make_engine_facts())
    assert [facts.path for facts in manifest.files] == ["base.onnx", "sub/data"]


def edit(directory, change):
    path = directory / "manifest.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.update(schema_version=99), "expected schema_version 1, found 99"),
        (lambda data: data.update(surprise=1), "unknown keys"),
        (lambda data: data["model"].update(surprise=1), "unknown keys"),
        (lambda data: data.pop("graphs"), "damaged"),
        (lambda data: data["model"].pop("vocab"), "damaged"),
        (lambda data: data.update(source=[]), "damaged"),
        (lambda data: data["files"][0].update(path="../elsewhere"), "damaged"),
        (lambda data: data["files"][0].update(path=5), "FileFacts.path can't be 5"),
        (lambda data: data.update(graphs={}), "names no base graph"),
        (lambda data: data.update(graphs=[]), "damaged"),
        (lambda data: data.update(heads=None), "expected an object for HeadFacts"),
        (lambda data: data.update(files=[]), "base.onnx is not among its files"),
        (lambda data: data["graphs"]["base"].update(file="../base.onnx"), "is not among its files"),
        (lambda data: data["graphs"]["base"]["inputs"][0].update(shape=None), "TensorFacts.shape can't be None"),
        (lambda data: data["model"].update(layers="2"), "ModelFacts.layers can't be '2'"),
        (lambda data: data["model"].update(eos_ids=None), "ModelFacts.eos_ids can't be None"),
        (lambda data: data["model"].update(dtype="fp8"), "dtype"),
        (
            lambda data: data["engine"].update(backend="trtx"),
            "backend can't be 'trtx': expected one of ort, trt, trt-rtx",
        ),
        (lambda data: data["engine"].update(backend=None), "EngineFacts.backend can't be None: expected one of ort"),
        (lambda data: data["engine"].update(library_version=1), "EngineFacts.library_version can't be 1"),
    ],
)
def test_a_corrupt_manifest_is_refused(directory, change, message):
    edit(directory, change)
    with pytest.raises(ManifestError, match=message):
        load_manifest(directory)


def test_not_json_is_refused(directory):
    for text in ('{"model":', "[" * 100_000):
        (directory / "manifest.json").write_text(text)
        with pytest.raises(ManifestError, match=r"damaged.*make it again"):
            load_manifest(directory)


def test_missing_things_are_named(directory, tmp_path_factory):
    with pytest.raises(ManifestError, match="is not a directory"):
        load_manifest(directory / "nowhere")
    with pytest.raises(ManifestError, match=r"has no manifest\.json"):
        load_manifest(tmp_path_factory.mktemp("empty"))
    (directory / "base.onnx").unlink()
    with pytest.raises(ManifestError, match=r"base\.onnx is missing"):
        load_manifest(directory)


def test_a_truncated_file_is_refused_always_and_a_changed_one_with_verify(directory):
    (directory / "sub" / "data").write_bytes(b"WEIGHTS")
    load_manifest(directory)
    with pytest.raises(ManifestError, match="sha256 differs"):
        load_manifest(directory, verify=True)
    (directory / "sub" / "data").write_bytes(b"weig")
    with pytest.raises(ManifestError, match="has 4 bytes, expected 7"):
        load_manifest(directory)
