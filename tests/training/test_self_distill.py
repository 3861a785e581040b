import json

import pytest

from spec_trt.errors import DataError
from spec_trt.training import self_distill as distilling
from spec_trt.training.base import load_base
from spec_trt.training.self_distill import SelfDistiller, self_distill
from tests.training.models import chat_model, conversation, write_lines


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return load_base(str(chat_model(tmp_path_factory.mktemp("model") / "tiny")), "fp32")


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(distilling, "_QUESTION_TOKENS", 12)
    monkeypatch.setattr(distilling, "_ANSWER_TOKENS", 6)


class Scripted:
    """Stands in for the model's generation: question, then answer, as the prompts ask."""

    def __init__(self, questions, answers):
        self.prompts, self._questions, self._answers = [], questions, answers

    def __call__(self, prompts, _temperature, _tokens):
        self.prompts.append(list(prompts))
        return self._questions if "user: " in prompts[0] and "assistant" not in prompts[0] else self._answers


def test_questions_continue_the_users_turn_and_answers_the_assistants(base, monkeypatch):
    script = Scripted([("Why?", True), ("cut", False), ("", True), ("Why?", True)], [("So.", True)])
    distiller = SelfDistiller(base)
    monkeypatch.setattr(distiller, "_generate", script)
    [conversation] = distiller.conversations(1, seed=0)
    assert script.prompts[0][0] == "user: "
    assert script.prompts[1] == ["user: Why?<eos>\nassistant: "]
    assert conversation["messages"][1] == {"role": "assistant", "content": "So."}
    assert conversation["complete"] is True


def test_a_model_that_writes_nothing_is_given_up(base, monkeypatch):
    distiller = SelfDistiller(base)
    monkeypatch.setattr(distiller, "_generate", Scripted([("Why?", True)], [("", True)]))
    with pytest.raises(DataError, match="only 0 usable conversations of 2"):
        list(distiller.conversations(2, seed=0))


def test_prompts_of_like_lengths_are_continued_together(base, monkeypatch):
    monkeypatch.setattr(distilling, "_PADDED_TOKENS", 10)
    assert distilling._groups([[0] * 4, [0] * 12, [0] * 2, [0] * 5]) == [[2, 0], [3], [1]]
    distiller = SelfDistiller(base)
    monkeypatch.setattr(distiller, "_continue", lambda rows, *_: [[row[0], 256] for row in rows])
    assert distiller._generate(["a", "b" * 20, "c"], 0.0, 2) == [("a", True), ("b", True), ("c", True)]


def about_texts(base, share, texts, count=8):
    """Which conversations ask about texts that were written before."""
    distiller = SelfDistiller(base, text_tasks=share, texts=texts)
    asked: list[list[str]] = []

    def generate(prompts, _temperature, _tokens):
        asked.append(list(prompts))
        return [(f"Question {len(asked)}?" if "assistant" not in prompt else "An answer.", True) for prompt in prompts]

    distiller._generate = generate  # type: ignore[method-assign]
    found = list(distiller.conversations(count, seed=0))
    return [not conversation["messages"][0]["content"].startswith("Question") for conversation in found], found


@pytest.mark.usefixtures("short")
def test_some_batches_ask_about_texts_once_there_are_enough(base):
    none, _ = about_texts(base, 0.0, ["A text."] * 64)
    assert not any(none)
    early, _ = about_texts(base, 0.5, ["A text."] * 60)
    assert early.index(True) >= 4  # every plain batch adds its one answer
    half, found = about_texts(base, 0.5, ["A text."] * 64, count=70)
    assert {conversation["batch"] % 2 for conversation, asks in zip(found, half, strict=True) if asks} == {1}
    assert any("A text" in conversation["messages"][0]["content"] for conversation in found)


@pytest.mark.usefixtures("short")
def test_questions_too_long_for_the_model_are_left_out(base):
    _, found = about_texts(base, 0.5, ["long " * 300] * 10**6, count=9)
    assert not any("long" in conversation["messages"][0]["content"] for conversation in found)


@pytest.mark.usefixtures("short")
def test_what_is_generated_ends_at_an_end_and_is_seeded(base):
    distiller = SelfDistiller(base)
    prompts = ["user: a<eos>\nassistant: ", "user: longer<eos>\nassistant: "]
    alone = [distiller._generate([prompt], 0.0, 6)[0] for prompt in prompts]
    assert distiller._generate(prompts, 0.0, 6) == alone  # padding does not matter
    assert distiller._read([104, 105, 256, 104]) == ("hi", True)
    assert distiller._read([104, 105]) == ("hi", False)


def test_a_file_is_added_to_until_it_has_enough(base, tmp_path, monkeypatch):
    file = tmp_path / "kept" / "data.jsonl"
    monkeypatch.setattr(SelfDistiller, "_generate", Scripted([("Why?", True)], [("So", False)]))
    self_distill(base, 2, file, seed=0)
    first = file.read_text()
    self_distill(base, 3, file, seed=0)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert file.read_text().startswith(first)
    assert [len(line["messages"]) for line in lines] == [2, 2, 2]
    self_distill(base, 3, file, seed=0)
    assert len(file.read_text().splitlines()) == 3


def batches(file):
    return [(line["batch"], line["temperature"]) for line in map(json.loads, file.read_text().splitlines())]


def test_added_batches_go_on_where_the_file_ended(base, tmp_path, monkeypatch):
    seeds: list[int] = []
    monkeypatch.setattr(distilling, "set_seed", seeds.append)
    monkeypatch.setattr(SelfDistiller, "_generate", Scripted([("Why?", True)], [("So", False)]))
    parts, whole = tmp_path / "parts.jsonl", tmp_path / "whole.jsonl"
    for count in (2, 9):
        self_distill(base, count, parts, seed=3)
    drawn, seeds[:] = list(seeds), []
    self_distill(base, 9, whole, seed=3)
    assert batches(parts) == batches(whole)
    assert [temperature for _, temperature in batches(parts)] == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 0.0, 0.2, 0.4]
    assert drawn == seeds


def test_no_two_seeds_share_a_batch(base, tmp_path, monkeypatch):
    seeds: list[int] = []
    monkeypatch.setattr(distilling, "set_seed", seeds.append)
    monkeypatch.setattr(SelfDistiller, "_generate", Scripted([("Why?", True)], [("So", False)]))
    for seed in range(3):
        self_distill(base, 4, tmp_path / f"{seed}.jsonl", seed)
    assert len(set(seeds)) == len(seeds) == 12
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_batches_of_a_file_that_names_none_are_not_written_again(base, tmp_path, monkeypatch):
    monkeypatch.setattr(SelfDistiller, "_generate", Scripted([("Why?", True)], [("So", False)]))
    file = write_lines(tmp_path / "data.jsonl", [conversation("a", "b"), conversation("c", "d", batch="other")])
    self_distill(base, 3, file, seed=0)
    assert json.loads(file.read_text().splitlines()[-1])["batch"] == 2


@pytest.mark.parametrize("torn", ['{"batch": 1, "messages": [{"ro', '{"messages": "\u00e9'])
def test_a_line_that_was_cut_short_is_written_again(base, tmp_path, monkeypatch, torn):
    monkeypatch.setattr(SelfDistiller, "_generate", Scripted([("Why?", True)], [("So", False)]))
    file = tmp_path / "data.jsonl"
    self_distill(base, 1, file, seed=0)
    whole = file.read_bytes()
    file.write_bytes(whole + torn.encode()[:-1])  # in the middle of a character too
    self_distill(base, 2, file, seed=0)
    assert file.read_bytes().startswith(whole)
    assert len(file.read_text().splitlines()) == len(batches(file)) == 2


def test_a_last_line_that_only_lacks_its_end_is_kept(base, tmp_path, monkeypatch):
    monkeypatch.setattr(SelfDistiller, "_generate", Scripted([("Why?", True)], [("So", False)]))
    file = tmp_path / "data.jsonl"
    self_distill(base, 2, file, seed=0)
    two = file.read_text()
    file.write_text(two.rstrip())
    self_distill(base, 2, file, seed=0)
    assert file.read_text() == two


def test_what_cannot_be_added_to_is_refused(base, tmp_path):
    with pytest.raises(DataError, match="cannot add to"):
        self_distill(base, 1, tmp_path, seed=0)


def test_a_model_without_a_usable_chat_template_is_refused(tmp_path):
    plain = load_base(str(chat_model(tmp_path / "plain", template=None)), "fp32")
    with pytest.raises(DataError, match="no chat template"):
        SelfDistiller(plain)
    upper = "{% for m in messages %}{{ m.content | lower }}{% endfor %}"
    rewriting = load_base(str(chat_model(tmp_path / "rewriting", template=upper)), "fp32")
    with pytest.raises(DataError, match="rewrites"):
        SelfDistiller(rewriting)
