import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from spec_trt.errors import ConfigError, DataError, SpecTrtError
from spec_trt.heads.eagle_checkpoint import load_eagle
from spec_trt.heads.medusa_checkpoint import load_medusa
from spec_trt.heads.target import head_target
from spec_trt.training import measured_tree, training_data
from spec_trt.training import train as training
from spec_trt.training.base import FrozenBase
from spec_trt.training.config import EagleSettings, JointSettings, MedusaSettings
from spec_trt.training.train import train_head
from spec_trt.training.working_directory import working_directory
from tests.training.models import (
    HEADS,
    chat_model,
    conversation,
    killed_at,
    tiny_config,
    weights,
    write_lines,
    write_rule,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return chat_model(tmp_path_factory.mktemp("model") / "tiny", layers=7)


@pytest.fixture(scope="module")
def shallow(tmp_path_factory) -> Path:
    return chat_model(tmp_path_factory.mktemp("model") / "shallow")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_rule(tmp_path_factory.mktemp("data") / "data.jsonl")


@pytest.fixture
def config(model, data, tmp_path):
    return tiny_config(model, data, tmp_path / "out")


def run(config):
    lines: list[str] = []
    return train_head(config, lines.append), lines


@pytest.mark.parametrize("name", HEADS)
def test_training_lowers_the_held_out_loss(config, name):
    card, lines = run(replace(config, head=HEADS[name], max_steps=18, evaluate_every=3))
    assert "too little was held out to choose a tree by: export takes its default" in lines
    assert "tree" not in json.loads((config.out / "config.json").read_text())
    curve = card["learning_curve"]
    assert curve[-1]["loss"] < 0.9 * curve[0]["loss"]
    assert curve[-1]["step"] == card["steps"] == 18
    assert card["tokens_seen"] == curve[-1]["tokens"] > 0


@pytest.mark.parametrize("name", HEADS)
def test_the_checkpoint_loads_and_says_how_it_was_made(config, model, name, monkeypatch):
    monkeypatch.setattr(measured_tree, "_FEWEST_ROWS", 50)
    card, lines = run(replace(config, head=HEADS[name], draft_vocab=20, max_steps=2))
    assert "draft vocabulary: 20 ids, 100.00 % of the answer tokens" in lines
    target = head_target(AutoModelForCausalLM.from_pretrained(model))
    loaded = (load_medusa if name == "medusa" else load_eagle)(config.out, target)
    assert set(b"bcefghi") < set(loaded.draft_ids or [])
    assert 256 in (loaded.draft_ids or [])
    assert loaded.tree
    assert loaded.notes == []
    kept = json.loads((config.out / "config.json").read_text())["spec_trt_training"]
    assert kept == json.loads(json.dumps(card))
    assert str(config.out.parent) not in json.dumps(kept)
    assert not working_directory(config.out).exists()


@pytest.mark.parametrize("name", ["medusa", "eagle"])
def test_a_killed_training_goes_on_to_the_same_weights(config, name):
    config = replace(config, head=HEADS[name])
    run(config)
    other = replace(config, out=config.out.with_name("other"))
    with killed_at(8):
        run(other)
    assert not other.out.exists()
    card, lines = run(other)
    assert "going on from checkpoint-6" in lines
    assert [point["step"] for point in card["learning_curve"]] == [6, 12]
    first, second = weights(config.out), weights(other.out)
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_only_what_changes_a_training_stops_it_from_going_on(config, model, data, tmp_path, monkeypatch):
    copied = tmp_path / "data.jsonl"
    copied.write_text(data.read_text())
    config = replace(config, head=HEADS["medusa"], data=(copied,), max_steps=2, checkpoint_every=1)
    with killed_at(1):
        run(config)
    with pytest.raises(ConfigError, match=r"another learning_rate, seed: repeat its options"):
        run(replace(config, seed=5, learning_rate=1.0))
    with pytest.raises(ConfigError, match=r"another model: repeat"):
        run(replace(config, model=str(chat_model(tmp_path / "tiny"))))
    copied.write_text(data.read_text() + data.read_text().splitlines()[0].replace("bcbc", "cbcb") + "\n")
    with pytest.raises(ConfigError, match=r"another data: repeat"):
        run(config)
    monkeypatch.chdir(data.parent)
    moved = Path(os.path.relpath(model, data.parent))
    _, lines = run(replace(config, model=str(moved), data=(Path(data.name),), threads=torch.get_num_threads()))
    assert "going on from checkpoint-1" in lines


def test_a_start_that_failed_leaves_nothing_to_trip_over(config, tmp_path):
    bad = write_lines(tmp_path / "bad.jsonl", [{"turns": ["a"]}])
    config = replace(config, head=HEADS["medusa"], max_steps=1)
    for change in ({"model": str(tmp_path / "none")}, {"data": (bad,)}, {"data": (tmp_path / "none.jsonl",)}):
        with pytest.raises(SpecTrtError):
            run(replace(config, **change))
        assert not working_directory(config.out).exists()
    with killed_at(0):
        run(replace(config, seed=1))
    assert json.loads((working_directory(config.out) / "settings.json").read_text())["seed"] == 1
    run(config)  # there is no checkpoint of the other seed to go on from
    assert config.out.is_dir()


@pytest.fixture
def one_of_several(monkeypatch):
    """The environment of a process that `torchrun` started."""
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "OMP_NUM_THREADS": "1"}
    for name, value in (ranks | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}).items():
        monkeypatch.setenv(name, value)
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.usefixtures("one_of_several")
def test_processes_find_each_other_before_they_read_or_write(config, monkeypatch):
    def found(*_):
        assert torch.distributed.is_initialized()
        raise DataError("enough")

    monkeypatch.setattr(training, "load_base", found)
    with pytest.raises(DataError, match="enough"):
        run(config)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"head": EagleSettings(version=3)}, "at least 7 layers"),
        ({"head": MedusaSettings(), "standalone": True, "draft_vocab": 20}, "standalone Medusa heads"),
        ({"head": MedusaSettings(joint=JointSettings(lora=2))}, "--lora needs peft"),
        ({"draft_vocab": 20, "draft_vocab_data": Path("none.jsonl")}, "cannot read none.jsonl"),
        ({"draft_vocab": 1}, "holds nothing"),
        ({"draft_vocab": 257}, "reduces nothing"),
        ({"data": (Path("none.jsonl"),)}, "cannot read none.jsonl"),
    ],
)
def test_what_can_be_refused_is_refused_before_data_are_made(config, shallow, monkeypatch, changes, fault):
    monkeypatch.setattr(training_data, "self_distill", lambda *_: 1 / 0)
    monkeypatch.setitem(sys.modules, "peft", None)
    config = replace(config, model=str(shallow), head=HEADS["medusa"], self_distill=4)
    with pytest.raises(ZeroDivisionError):
        run(config)
    with pytest.raises(SpecTrtError, match=fault):
        run(replace(config, **changes))


def test_the_bases_own_data_outlive_a_training_that_was_killed(config, shallow, monkeypatch):
    def write(_base, count, file, seed, _text_tasks):
        file.parent.mkdir(exist_ok=True)
        write_lines(file, [conversation(f"q{number}", f"{seed}bcbcbc") for number in range(count)])

    monkeypatch.setattr(training_data, "self_distill", write)
    config = replace(config, model=str(shallow), head=HEADS["medusa"], data=(), self_distill=12, max_steps=1)
    with killed_at(0):
        run(config)
    [kept] = working_directory(config.out).glob("*.jsonl")
    with killed_at(0):
        run(replace(config, seed=1))
    assert kept in (files := list(working_directory(config.out).glob("*.jsonl")))
    assert len(files) == 2  # another seed's are others


def test_an_existing_checkpoint_is_never_replaced(config):
    config.out.mkdir()
    with pytest.raises(ConfigError, match="exists already"):
        run(config)


def test_unusable_data_leaves_no_checkpoint(config, tmp_path):
    file = write_lines(tmp_path / "bad.jsonl", [{"turns": ["a"]}])
    with pytest.raises(DataError, match="no usable line"):
        run(replace(config, data=(file,)))
    assert not config.out.exists()
    assert not working_directory(config.out).exists()


def test_the_feature_cache_changes_nothing_and_spares_the_base(config, model, tmp_path, monkeypatch):
    config = replace(config, head=HEADS["eagle3"], feature_cache=tmp_path / "cache", max_steps=6)
    run(config)
    monkeypatch.setattr(FrozenBase, "_run", lambda *_: 1 / 0)
    copied = shutil.copytree(model, tmp_path / "copied")
    other = replace(config, out=tmp_path / "other", model=str(copied))
    run(other)
    first, second = weights(config.out), weights(other.out)
    assert all(torch.equal(first[key], second[key]) for key in first)
    run(replace(config, out=tmp_path / "medusa", head=HEADS["medusa"]))  # reads a part of what EAGLE-3 read
    with pytest.raises(ZeroDivisionError):
        run(replace(config, out=tmp_path / "third", max_length=25))  # lines are cut, so they are others


def test_the_feature_cache_tells_bases_of_one_name_apart(config, model, tmp_path, monkeypatch):
    config = replace(config, head=HEADS["medusa"], feature_cache=tmp_path / "cache", max_steps=1)
    run(config)
    tuned = shutil.copytree(model, tmp_path / model.name)
    weights = load_file(tuned / "model.safetensors")
    weights["model.layers.1.self_attn.q_proj.weight"] *= 1.01  # all that a fine-tuning changed
    save_file(weights, tuned / "model.safetensors", metadata={"format": "pt"})
    monkeypatch.setattr(FrozenBase, "_run", lambda *_: 1 / 0)
    run(replace(config, out=tmp_path / "other"))
    with pytest.raises(ZeroDivisionError):
        run(replace(config, out=tmp_path / "third", model=str(tuned)))


def test_bf16_trains_as_well(config):
    card, _ = run(replace(config, precision="bf16", max_steps=18, evaluate_every=3))
    assert card["learning_curve"][-1]["loss"] < 0.9 * card["learning_curve"][0]["loss"]


def test_other_engines_get_a_whole_checkpoint(config):
    run(replace(config, standalone=True, max_steps=1))
    assert weights(config.out)["embed_tokens.weight"].shape == (257, 32)
    medusa = replace(config, standalone=True, max_steps=1, head=HEADS["medusa"], out=config.out.with_name("medusa"))
    run(medusa)
    assert (medusa.out / "medusa_lm_head.pt").is_file()
    with pytest.raises(ConfigError, match="standalone"):
        run(replace(medusa, draft_vocab=20, out=config.out.with_name("third")))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"data": ()}, "nothing to train on"),
        ({"save_data": Path("x")}, "give both"),
        ({"draft_vocab_data": Path("x")}, "give both"),
        ({"self_distill": -3}, "number of conversations, found -3"),
        ({"seed": -1}, "seed must be from 0"),
        ({"batch_size": 0}, "batch_size must be positive"),
        ({"held_out": 1.0}, "shares"),
        ({"precision": "fp8"}, "unknown precision"),
        ({"head": MedusaSettings(joint=JointSettings()), "feature_cache": Path("x")}, "leave out --feature-cache"),
    ],
)
def test_settings_that_make_no_sense_are_refused(config, changes, fault):
    with pytest.raises(ConfigError, match=fault):
        replace(config, **changes)


def test_settings_of_heads_are_checked():
    for settings, options in (
        (EagleSettings, {"unroll": 0}),
        (EagleSettings, {"noise": -1.0}),
        (MedusaSettings, {"heads": 0}),
        (JointSettings, {"heads_warmup": 1.0}),
        (JointSettings, {"lora": 0}),
    ):
        with pytest.raises(ConfigError):
            settings(**options)
