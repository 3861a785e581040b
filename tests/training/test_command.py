import json

import pytest

from spec_trt.cli import main
from tests.training.models import chat_model, conversation, write_lines


@pytest.fixture
def arguments(tmp_path):
    model = chat_model(tmp_path / "tiny")
    data = write_lines(tmp_path / "data.jsonl", [conversation(f"q{number}", "abcabc") for number in range(12)])
    few = ["--held-out", "0.2", "--batch-size", "4", "--max-steps", "2", "--evaluate-every", "2"]
    return [str(model), str(tmp_path / "out"), "--data", str(data), *few]


@pytest.mark.parametrize(
    ("method", "options", "label"),
    [
        ("eagle", ["--unroll", "2"], "step 1 top-4"),
        ("medusa", ["--heads", "2"], "head 1 top-4"),
        ("medusa", ["--joint", "--heads", "1"], "base top-1"),
    ],
)
def test_train_shows_accuracy_and_prints_the_last_one(arguments, capsys, method, options, label):
    main(["train", method, *arguments, *options])
    out, err = capsys.readouterr()
    assert label in json.loads(out)
    assert "train on: 10 sequences" in err
    assert f"{label.split(' top')[0]} top-1/4" in err
    assert "wrote " in err


@pytest.mark.parametrize(
    ("method", "change", "message"),
    [
        ("medusa", ["--batch-size", "0"], "batch_size must be positive"),
        ("medusa", ["--lora", "2"], "--lora says how MODEL is trained: add --joint"),
        ("medusa", ["--base-learning-rate", "1e-4"], "--base-learning-rate says how MODEL is trained: add --joint"),
        ("medusa", ["--heads-warmup", "0.3"], "add --joint"),
        ("medusa", ["--heads-weight", "0.1"], "add --joint"),
        ("medusa", ["--data", "missing.jsonl"], "cannot read missing.jsonl"),
        ("eagle", ["--token-weight", "0"], "token_weight must be positive, found 0.0"),
        ("eagle", ["--version", "3", "--noise", "0.1"], "--noise says how EAGLE learns features"),
        ("eagle", ["--version", "3", "--feature-weight", "1"], "--feature-weight says how EAGLE learns features"),
    ],
)
def test_faults_are_one_line(arguments, capsys, method, change, message):
    with pytest.raises(SystemExit) as raised:
        main(["train", method, *arguments, *change])
    err = capsys.readouterr().err
    assert raised.value.code == 1
    assert message in err
    assert err.count("\n") == 1


def test_a_model_writes_its_own_data(arguments, tmp_path, monkeypatch):
    from spec_trt.training.self_distill import SelfDistiller

    def generate(_self, prompts, _temperature, _tokens):
        return [(f"{len(prompt)} {place}", True) for place, prompt in enumerate(prompts)]

    monkeypatch.setattr(SelfDistiller, "_generate", generate)
    kept = tmp_path / "kept.jsonl"
    without = [*arguments[:2], *arguments[4:]]
    main(["train", "medusa", *without, "--self-distill", "20", "--save-data", str(kept)])
    assert len(kept.read_text().splitlines()) == 20
    assert json.loads((tmp_path / "out" / "config.json").read_text())["spec_trt_training"]["data"] == ["kept.jsonl"]
