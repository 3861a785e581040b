import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from spec_trt.errors import ConfigError
from spec_trt.heads.medusa_checkpoint import load_medusa
from spec_trt.heads.target import head_target
from spec_trt.training.config import JointSettings, MedusaSettings, TrainConfig
from spec_trt.training.joint_trainer import rate_factor
from spec_trt.training.train import train_head
from spec_trt.training.working_directory import last_checkpoint, working_directory
from tests.training.models import chat_model, killed_at, write_lines

LETTERS = "abcdefg"
STEPS = 100


def sequence(first, second):
    """Each letter is the sum of the two before it: the next one needs their sum, what follows it needs both."""
    numbers = [first, second]
    while len(numbers) < 24:
        numbers.append((numbers[-1] + numbers[-2]) % len(LETTERS))
    return "".join(LETTERS[number] for number in numbers)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    lines = [{"text": sequence(first, second)} for first in range(7) for second in range(7) if first or second]
    return write_lines(tmp_path_factory.mktemp("data") / "data.jsonl", lines)


@pytest.fixture(scope="module")
def model(tmp_path_factory, data):
    """A tiny base that has learned the rule."""
    directory = chat_model(tmp_path_factory.mktemp("model") / "tiny")
    base, tokenizer = (kind.from_pretrained(directory) for kind in (AutoModelForCausalLM, AutoTokenizer))
    texts = [json.loads(line)["text"] for line in data.read_text().splitlines()]
    ids = torch.tensor(tokenizer(texts)["input_ids"])
    optimizer = torch.optim.AdamW(base.parameters(), lr=5e-3)
    for _ in range(150):
        loss = base(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    base.save_pretrained(directory)
    return directory


@pytest.fixture
def config(model, data, tmp_path):
    return TrainConfig(
        model=str(model),
        out=tmp_path / "out",
        head=MedusaSettings(heads=2),
        data=(data,),
        held_out=0.2,
        batch_size=8,
        max_steps=STEPS,
        learning_rate=2e-2,
        clip=5.0,
        precision="fp32",
        evaluate_every=STEPS,
        checkpoint_every=STEPS,
    )


def trained(config, **joint):
    head = replace(config.head, joint=JointSettings(**joint)) if joint else config.head
    out = config.out.with_name("joint" if joint else "frozen")
    card = train_head(replace(config, head=head, out=out), lambda _: None)
    return out, card["learning_curve"][-1]


def accept_length(accuracy):
    """Of a chain of the heads' best tokens, taken as independent."""
    first, second = accuracy["head 0 top-1"], accuracy["head 1 top-1"]
    return 2 + first + first * second


def own_loss(directory, data):
    model = AutoModelForCausalLM.from_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    ids = torch.tensor(tokenizer([json.loads(line)["text"] for line in data.read_text().splitlines()])["input_ids"])
    with torch.no_grad():
        return float(model(ids, labels=ids).loss)


def test_joint_training_beats_a_frozen_base_and_keeps_it_sound(config, model, data):
    _, frozen = trained(config)
    out, joint = trained(config, base_learning_rate=2e-3, heads_warmup=0.3, heads_weight=0.2)
    assert accept_length(joint) > accept_length(frozen) + 0.3
    assert own_loss(out, data) < own_loss(model, data) + 0.05
    assert load_medusa(out, head_target(AutoModelForCausalLM.from_pretrained(out))).draft_ids is None
    kept = json.loads((out / "config.json").read_text())
    assert (kept["medusa_num_heads"], kept["spec_trt_training"]["steps"]) == (2, STEPS)


def test_low_rank_training_changes_only_linear_layers(config, model):
    config = replace(config, max_steps=4, evaluate_every=4, draft_vocab=5)
    out, _ = trained(config, lora=2, heads_warmup=0.0, base_learning_rate=1e-2)
    before, after = load_file(model / "model.safetensors"), load_file(out / "model.safetensors")
    assert {key for key in after if key not in before} == {
        "medusa_head.d2t",
        *(f"medusa_head.{head}.0.linear.{name}" for head in range(2) for name in ("weight", "bias")),
    }
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    assert changed == {key for key in before if "_proj" in key}


@pytest.mark.parametrize("lora", [None, 2])
def test_a_killed_joint_training_goes_on_to_the_same_weights(config, tmp_path, lora):
    tied = chat_model(tmp_path / "tied", tied=True)
    config = replace(config, model=str(tied), max_steps=6, evaluate_every=3, checkpoint_every=3)
    joint = {"lora": lora, "heads_warmup": 0.3, "base_learning_rate": 1e-2}
    out, _ = trained(config, **joint)
    whole = load_file(out / "model.safetensors")
    out.rename(tmp_path / "whole")
    with killed_at(5):
        trained(config, **joint)
    assert last_checkpoint(working_directory(out)) == working_directory(out) / "checkpoint-3"
    trained(config, **joint)
    resumed = load_file(out / "model.safetensors")
    assert resumed.keys() == whole.keys()
    assert all(torch.equal(resumed[key], whole[key]) for key in whole)
    before = load_file(tied / "model.safetensors")
    assert any(not torch.equal(before[key], whole[key]) for key in before)


def test_other_engines_get_a_projection_per_head(config, capsys):
    config = replace(config, max_steps=2, evaluate_every=2, standalone=True)
    out, _ = trained(config, heads_warmup=0.0)
    assert "shards" not in capsys.readouterr().err  # the bar that transformers draws when it writes a model
    tensors = load_file(out / "model.safetensors")
    for head in range(2):
        assert torch.equal(tensors[f"medusa_head.{head}.1.weight"], tensors["lm_head.weight"])
    loaded = load_medusa(out, head_target(AutoModelForCausalLM.from_pretrained(out)))
    assert (loaded.heads.config.heads, loaded.heads.config.shared_projection) == (2, False)
    with pytest.raises(ConfigError, match="standalone Medusa heads have the whole vocabulary"):
        trained(replace(config, draft_vocab=5, out=config.out / "reduced"), lora=2)


def test_the_base_waits_until_the_heads_are_warm(config, model):
    out, _ = trained(replace(config, max_steps=4, evaluate_every=4), heads_warmup=0.99)
    before, after = load_file(model / "model.safetensors"), load_file(out / "model.safetensors")
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_the_learning_rate_rises_and_falls():
    rates = [rate_factor("cosine", step, 12, 2) for step in range(13)]
    assert rates[:3] == [0.0, 0.5, 1.0]
    assert rates[7] == pytest.approx(0.5)
    assert rates[12] == pytest.approx(0.0)
    assert rate_factor("linear", 7, 12, 2) == 0.5
    assert rate_factor("constant_with_warmup", 11, 12, 2) == 1.0
