import random

import pytest

from spec_trt.training import text_tasks
from spec_trt.training.text_tasks import LANGUAGES, TASKS, draw_tasks, excerpt

TEXTS = [f"First {letter}. Second {letter}. Third {letter}." for letter in "abcdefgh"]


def draw(count, seed=0):
    asked: list[str] = []

    def answer(questions):
        asked.extend(questions)
        return [f"<{number}>" for number, _ in enumerate(questions)]

    return draw_tasks(TEXTS, count, random.Random(seed), answer), asked


def test_every_question_holds_texts_or_what_was_made_of_them():
    questions, asked = draw(200)
    assert len(questions) == 200
    assert sum("<" in question for question in questions) == len(asked) > 0
    for question in questions:
        assert any(letter in question for letter in ("First", "Second", "Third", "<"))
        assert "{" not in question
    assert all(any(language in question for language in LANGUAGES) for question in asked)


def test_all_kinds_come_about_and_a_seed_gives_the_same_again():
    questions, _ = draw(400)
    starts = {task.question.partition("{")[0] for task in TASKS if not task.question.startswith("{")}
    assert all(any(question.startswith(start) for question in questions) for start in starts)
    assert draw(50, seed=3) == draw(50, seed=3) != draw(50, seed=4)


def test_a_text_that_nothing_was_made_of_stays(monkeypatch):
    translated = [task for task in TASKS if task.before is not None]
    monkeypatch.setattr(text_tasks, "TASKS", tuple(translated))
    questions = draw_tasks(["Only this."], 5, random.Random(0), lambda asked: [""] * len(asked))
    assert all("Only this." in question for question in questions)


@pytest.mark.parametrize(
    ("sentences", "expected"),
    [(None, {"A. B. C."}), (1, {"A.", "B.", "C."}), (2, {"A. B.", "B. C."}), (9, {"A. B. C."})],
)
def test_an_excerpt_is_made_of_neighbouring_sentences(sentences, expected):
    assert {excerpt("A. B. C.", sentences, random.Random(seed)) for seed in range(30)} == expected


def test_an_excerpt_of_no_sentence_is_the_text():
    assert excerpt("...", 2, random.Random(0)) == "..."
