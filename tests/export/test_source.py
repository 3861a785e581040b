"""Where MODEL points."""

import importlib.util
from pathlib import Path

import pytest

from spec_trt.errors import ModelError
from spec_trt.export.source import Source, locate


def test_a_directory_is_named_without_its_path(tmp_path: Path):
    directory = tmp_path / "models" / "tiny"
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    assert locate(str(directory)) == Source(path=str(directory), gguf_file=None, name="tiny")


def test_a_gguf_file(tmp_path: Path):
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"GGUF\x03\x00\x00\x00")
    assert locate(str(file)) == Source(path=str(tmp_path), gguf_file="tiny.gguf", name="tiny.gguf")


@pytest.mark.parametrize("model", ["gpt2", "HuggingFaceTB/SmolLM2-135M-Instruct"])
def test_a_hub_id(model: str):
    assert locate(model) == Source(path=model, gguf_file=None, name=model)


@pytest.mark.parametrize("model", ["/no/such/model", "./model", "../model", "a/b/c", "what is this"])
def test_a_path_that_does_not_exist(model: str):
    with pytest.raises(ModelError, match="does not exist"):
        locate(model)


def test_a_directory_without_a_model(tmp_path: Path):
    with pytest.raises(ModelError, match=r"holds no model.*config\.json"):
        locate(str(tmp_path))


def test_a_file_that_is_no_model(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ModelError, match="is not a model"):
        locate(str(tmp_path / "notes.txt"))


def test_a_missing_gguf_file(tmp_path: Path):
    with pytest.raises(ModelError, match=r"does not exist: expected a \.gguf file"):
        locate(str(tmp_path / "absent.gguf"))


def test_a_gguf_file_in_name_only(tmp_path: Path):
    (tmp_path / "fake.gguf").write_bytes(b"PK\x03\x04")
    with pytest.raises(ModelError, match="not a GGUF file"):
        locate(str(tmp_path / "fake.gguf"))


def test_gguf_without_its_extra_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ModelError, match=r"gguf and accelerate: pip install 'spec-trt\[gguf\]'"):
        locate(str(tmp_path / "tiny.gguf"))
