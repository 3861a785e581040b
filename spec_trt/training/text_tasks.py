"""Questions about texts that the model wrote before: long prompts, whose answers repeat or rewrite parts of them."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["TASKS", "TextTask", "draw_tasks", "excerpt"]

LANGUAGES = ("German", "French", "Spanish", "Italian", "Portuguese", "Dutch")

Answer = Callable[[list[str]], list[str]]
"""Lets the model answer questions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTask:
    """One kind of question.

    Attributes:
        question: What is asked, with fields `text` and, where it has one, `language`.
        passages: Most texts that `text` is made of, at least half as many.
        sentences: Sentences taken of each text; None for all.
        before: A question about `text` whose answer takes its place: so a text in another language comes about.
    """

    question: str
    passages: int = 1
    sentences: int | None = None
    before: str | None = None


TASKS = (
    TextTask(question="Summarize this text in a few sentences.\n\n{text}", passages=4),
    TextTask(question="{text}\n\nWhat are the main points of the text above?", passages=4),
    TextTask(question="Shorten this article to one paragraph:\n{text}", passages=5),
    TextTask(question="Translate into {language}: {text}", sentences=2),
    TextTask(
        question="Translate from {language} into English: {text}", sentences=2, before="Write in {language}: {text}"
    ),
    TextTask(
        question="What does this {language} text say in English?\n{text}",
        sentences=3,
        before="Translate into {language}: {text}",
    ),
    TextTask(question="Answer from these passages: what do they explain, and how?\n\n{text}", passages=4),
    TextTask(question="Use the notes to write a short answer for a customer.\n\nNotes:\n{text}", passages=3),
    TextTask(question="List the names, numbers and facts that are found in this text:\n\n{text}", passages=2),
    TextTask(question="Rewrite the text below in simpler words.\n\n{text}", passages=1),
)


def draw_tasks(texts: Sequence[str], count: int, draw: random.Random, answer: Answer) -> list[str]:
    """Ask about some of the texts.

    Args:
        texts: What the model wrote before, at least one.
        count: How many questions.
        draw: Decides which.
        answer: Asked what `before` says; a text whose answer is empty stays as it is.

    Returns:
        [count] questions.
    """
    tasks = draw.choices(TASKS, k=count)
    languages = draw.choices(LANGUAGES, k=count)
    chosen = [_draw_text(task, texts, draw) for task in tasks]
    asking = [place for place, task in enumerate(tasks) if task.before is not None]
    asked = [(tasks[place].before or "").format(text=chosen[place], language=languages[place]) for place in asking]
    for place, text in zip(asking, answer(asked), strict=True):
        chosen[place] = text or chosen[place]
    return [
        task.question.format(text=text, language=language)
        for task, text, language in zip(tasks, chosen, languages, strict=True)
    ]


def _draw_text(task: TextTask, texts: Sequence[str], draw: random.Random) -> str:
    passages = draw.choices(texts, k=draw.randint((task.passages + 1) // 2, task.passages))
    return "\n\n".join(excerpt(passage, task.sentences, draw) for passage in passages)


def excerpt(text: str, sentences: int | None, draw: random.Random) -> str:
    """Neighbouring sentences of a text, or all of it."""
    if sentences is None:
        return text
    parts = [part.strip(" .") for part in text.replace("\n", " ").split(". ")]
    parts = [part for part in parts if part]
    if not parts:
        return text
    first = draw.randrange(max(1, len(parts) - sentences + 1))
    return ". ".join(parts[first : first + sentences]) + "."
