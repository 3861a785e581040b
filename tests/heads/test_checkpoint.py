import json
import os
import pickle

import pytest
import torch

from spec_trt.errors import ModelError
from spec_trt.heads.checkpoint import read_checkpoint
from tests.heads.checkpoints import write, write_shards

TENSORS = {"a.weight": torch.arange(6.0).reshape(2, 3), "b.bias": torch.ones(2)}
FILES = ["model.safetensors", "pytorch_model.bin", "medusa_lm_head.pt", "anything.safetensors", "x.pth"]


def refused(path, **options):
    with pytest.raises(ModelError) as caught:
        read_checkpoint(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def same(tensors):
    return tensors.keys() == TENSORS.keys() and all(torch.equal(tensors[key], TENSORS[key]) for key in TENSORS)


@pytest.mark.parametrize("file", FILES)
def test_a_directory_or_its_file_with_its_config(tmp_path, file):
    directory = write(tmp_path / "head", TENSORS, {"bias": False}, file)
    for path, source in ((directory, "head"), (directory / file, file)):
        checkpoint = read_checkpoint(path)
        assert same(checkpoint.tensors)
        assert (checkpoint.config, checkpoint.source, checkpoint.notes) == ({"bias": False}, source, [])


def test_the_name_is_a_directorys_own_wherever_one_stands(tmp_path, monkeypatch):
    write(tmp_path / "head", TENSORS, None)
    monkeypatch.chdir(tmp_path / "head")
    assert read_checkpoint(tmp_path / "head" / ".." / "head").source == "head"


@pytest.mark.parametrize("ending", ["safetensors", "bin"])
def test_shards_by_directory_or_index(tmp_path, ending):
    directory = write_shards(tmp_path, TENSORS, {}, ending=ending)
    stem = "model" if ending == "safetensors" else "pytorch_model"
    for path in (directory, directory / f"{stem}.{ending}.index.json"):
        assert same(read_checkpoint(path).tensors)


def test_only_the_chosen_tensors_are_read(tmp_path):
    write(tmp_path, TENSORS, None)
    assert list(read_checkpoint(tmp_path, choose=lambda keys: keys[:1]).tensors) == ["a.weight"]


def test_a_preferred_file_comes_first(tmp_path):
    write(tmp_path, {"base": torch.ones(1)}, None)
    write(tmp_path, TENSORS, None, "medusa_lm_head.pt")
    assert same(read_checkpoint(tmp_path, preferred=["absent.pt", "medusa_lm_head.pt"]).tensors)


def test_what_a_trainer_leaves_is_no_weights(tmp_path):
    write(tmp_path, TENSORS, None, "head.pt")
    for name in ("optimizer.pt", "scheduler.pt", "training_args.bin", "rng_state_0.pth"):
        torch.save({}, tmp_path / name)
    assert same(read_checkpoint(tmp_path).tensors)


def test_an_old_pickle_is_read(tmp_path):
    torch.save(TENSORS, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert same(read_checkpoint(tmp_path).tensors)


def test_rotary_buffers_are_ignored_and_named(tmp_path):
    buffer = {"layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}
    write(tmp_path, TENSORS | buffer, None)
    checkpoint = read_checkpoint(tmp_path)
    assert same(checkpoint.tensors)
    assert checkpoint.notes == ["ignored, a head computes them: layers.0.self_attn.rotary_emb.inv_freq"]


def test_a_directory_without_weights(tmp_path):
    (tmp_path / "README.md").write_text("nothing")
    assert "holds no draft head: expected a file ending in .safetensors, .pt, .bin, .pth" in refused(tmp_path)


def test_several_files_without_an_index(tmp_path):
    write(tmp_path, TENSORS, None, "one.pt")
    write(tmp_path, TENSORS, None, "two.pt")
    assert "holds several files of weights (one.pt, two.pt): give the path of the one" in refused(tmp_path)
    assert same(read_checkpoint(tmp_path / "two.pt").tensors)


def test_no_such_path(tmp_path):
    assert "does not exist: expected a draft head's directory, or its file of weights" in refused(tmp_path / "gone")


def test_a_text_file(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    assert "notes.txt is no draft head: expected a directory, or a file ending in" in refused(tmp_path / "notes.txt")


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("content", [b"hello", b"", b"PK\3\4 not really a zip archive"])
def test_a_file_that_is_not_what_its_name_says(tmp_path, file, content):
    (tmp_path / file).write_bytes(content)
    assert f"cannot read {tmp_path / file}: damaged" in refused(tmp_path)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_file_cut_short(tmp_path, file, share):
    write(tmp_path, {"a": torch.zeros(400)}, None, file)
    os.truncate(tmp_path / file, int((tmp_path / file).stat().st_size * share))
    assert f"cannot read {tmp_path / file}: damaged" in refused(tmp_path)


class _Code:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_pickle_is_not_run(tmp_path, zipped):
    mark = tmp_path / "ran"
    torch.save({"a": _Code(mark)}, tmp_path / "head.pt", _use_new_zipfile_serialization=zipped)
    assert "it holds more than tensors; nothing in it was run" in refused(tmp_path)
    assert not mark.exists()


def test_a_plain_pickle_is_refused(tmp_path):
    (tmp_path / "head.bin").write_bytes(pickle.dumps({"a": _Code(tmp_path / "ran")}))
    assert "nothing in it was run" in refused(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [{"model": {"a": torch.ones(1)}}, [torch.ones(1)], {1: torch.ones(1)}])
def test_a_pickle_of_something_else(tmp_path, content):
    torch.save(content, tmp_path / "head.pt")
    assert "is no checkpoint of weights: expected tensors by name and nothing else" in refused(tmp_path)


@pytest.mark.parametrize("text", ["{", "[1]", "\ud800"])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_damaged_json(tmp_path, text, name):
    write(tmp_path, TENSORS, None)
    (tmp_path / name).write_bytes(text.encode("utf-8", "surrogatepass"))
    assert f"{name} is damaged: expected" in refused(tmp_path)


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        (None, "expected a weight_map of keys to files"),
        ({"a": 1}, "expected a weight_map of keys to files"),
        ({}, "expected files in it"),
        ({"a": "gone.safetensors"}, "expected files in it, missing ['gone.safetensors']"),
        ({"a": "../model.safetensors"}, "expected files in it, missing ['../model.safetensors']"),
    ],
)
def test_an_index_that_does_not_fit(tmp_path, weight_map, message):
    write(tmp_path, TENSORS, None)
    write(tmp_path / "head", TENSORS, None, "part.safetensors")
    (tmp_path / "head" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert message in refused(tmp_path / "head")
