"""Data that the model writes itself: it continues its chat template's user turn into a question, then answers it."""

import hashlib
import json
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import set_seed

from spec_trt.errors import DataError
from spec_trt.json_lines import parse_json_lines, read_text
from spec_trt.training.base import LoadedBase
from spec_trt.training.text_tasks import draw_tasks

__all__ = ["SelfDistiller", "self_distill"]

_MARK = "QUESTION"
_BATCH = 16
_QUESTION_TOKENS = 96
_ANSWER_TOKENS = 256
_PADDED_TOKENS = 4096
"""Tokens of the prompts that are continued at once, padding included."""
_TEXTS = 64
"""Texts that there must be before questions about them are asked."""
_TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_TRIES_PER_CONVERSATION = 5


def self_distill(base: LoadedBase, count: int, file: Path, seed: int, text_tasks: float = 0.0) -> None:
    """Let the model write conversations until `file` has so many; those that are there already count.

    What an earlier call was killed in the middle of is cut off, and the batches behind it are others than before it.

    Args:
        base: The model.
        count: How many.
        file: JSON lines of `messages`, each with `complete`: whether the answer ended by itself, and `batch`.
        seed: Of what is drawn.
        text_tasks: Share of those that ask about texts which were written before.

    Raises:
        DataError: The model has no chat template that questions can be taken from, or hardly writes any.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = _mended(file) if file.exists() else []
    distiller = SelfDistiller(base, text_tasks=text_tasks, texts=_written(lines))
    rest = count - len(lines)
    with file.open("a", encoding="utf-8") as stream, tqdm(total=count, initial=len(lines), desc="distill") as bar:
        for conversation in distiller.conversations(rest, seed, _next_batch(lines)):
            stream.write(json.dumps(conversation, ensure_ascii=False) + "\n")
            stream.flush()
            bar.update()


def _mended(file: Path) -> list[dict[str, Any]]:
    """The lines of a file, behind which more can be written: what was cut short behind the last one is dropped."""
    try:
        content = file.read_bytes()
        torn = content[content.rfind(b"\n") + 1 :]
        if _is_json(torn):
            with file.open("ab") as stream:
                stream.write(b"\n")
        elif torn:
            os.truncate(file, len(content) - len(torn))
    except OSError as error:
        raise DataError(f"cannot add to {file}: {error.strerror or error}") from error
    return [line for _, line in parse_json_lines(read_text(file), file)]


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _next_batch(lines: Sequence[dict[str, Any]]) -> int:
    """The first batch that none of the lines is of; one that names none is taken for a batch of its own."""
    named = [line.get("batch") for line in lines]
    return max((batch if isinstance(batch, int) else place for place, batch in enumerate(named)), default=-1) + 1


def _written(lines: Sequence[dict[str, Any]]) -> list[str]:
    """What the model answered in lines of an earlier call."""
    messages = [message for line in lines for message in line.get("messages", [])]
    return [message["content"] for message in messages if message["role"] == "assistant"]


def _seed_of(batch: int, seed: int) -> int:
    """Another for every batch of every seed."""
    return int.from_bytes(hashlib.sha256(f"{seed} {batch}".encode()).digest()[:4], "big")


class SelfDistiller:
    """Samples questions and answers of a model with a chat template.

    Args:
        base: The model.
        text_tasks: Share of the batches that ask about texts which were written before.
        texts: Such texts.

    Raises:
        DataError: The model has no chat template, or one that rewrites what users say.
    """

    def __init__(self, base: LoadedBase, *, text_tasks: float = 0.0, texts: Sequence[str] = ()) -> None:
        self._base = base
        self._text_tasks, self._texts = text_tasks, list(texts)
        self._before, self._after = self._user_turn()

    def conversations(self, count: int, seed: int, first: int = 0) -> Iterator[dict[str, Any]]:
        """Write so many, temperatures from 0 to 1 in turn.

        Args:
            count: How many.
            seed: Of what is drawn.
            first: The first batch: what is drawn in one depends on its number, the seed and, where it asks about
                texts, on those.

        Raises:
            DataError: The model writes hardly any that are usable.
        """
        given = 0
        for batch in range(first, first + max(1, count) * _TRIES_PER_CONVERSATION):
            if given >= count:
                return
            set_seed(_seed_of(batch, seed))
            temperature = _TEMPERATURES[batch % len(_TEMPERATURES)]
            questions = self._text_questions(batch, seed) if self._asks_about_texts(batch) else self._questions()
            for conversation in self._answers(questions, temperature):
                self._texts.append(conversation["messages"][-1]["content"])
                if given < count:
                    given += 1
                    yield {"batch": batch, **conversation}
        if given < count:
            raise DataError(f"the model wrote only {given} usable conversations of {count}: give --data instead")

    def _user_turn(self) -> tuple[str, str]:
        """What the chat template puts before and behind a user's words."""
        if self._base.tokenizer.chat_template is None:
            raise DataError(f"{self._base.name} has no chat template to write conversations in: give --data instead")
        rendered = str(self._base.tokenizer.apply_chat_template(_asked(_MARK), tokenize=False))
        before, mark, after = rendered.partition(_MARK)
        if not mark:
            raise DataError(f"the chat template of {self._base.name} rewrites what users say: give --data instead")
        return before, after.strip()

    def _questions(self) -> list[str]:
        """User turns that ended by themselves and say something, each once."""
        answers = self._generate([self._before] * _BATCH, 1.0, _QUESTION_TOKENS)
        return list(dict.fromkeys(text for text, complete in answers if complete and text))

    def _asks_about_texts(self, batch: int) -> bool:
        share = self._text_tasks
        return len(self._texts) >= _TEXTS and int((batch + 1) * share) > int(batch * share)

    def _text_questions(self, batch: int, seed: int) -> list[str]:
        """Questions about texts written before, but for those too long to be answered."""

        def answer(questions: list[str]) -> list[str]:
            return [text for text, _ in self._replies(questions, 0.0)]

        questions = draw_tasks(self._texts, _BATCH, random.Random(_seed_of(batch, seed)), answer)
        room = getattr(self._base.model.config, "max_position_embeddings", None)
        if room is None:
            return questions
        return [text for text in questions if len(self._encode(self._asking(text))) + _ANSWER_TOKENS <= room]

    def _answers(self, questions: Sequence[str], temperature: float) -> Iterator[dict[str, Any]]:
        for question, (answer, complete) in zip(questions, self._replies(questions, temperature), strict=True):
            if answer:
                messages = [*_asked(question), {"role": "assistant", "content": answer}]
                yield {"temperature": temperature, "messages": messages, "complete": complete}

    def _replies(self, questions: Sequence[str], temperature: float) -> list[tuple[str, bool]]:
        """The answer to each question, and whether it ended by itself."""
        if not questions:
            return []
        return self._generate([self._asking(question) for question in questions], temperature, _ANSWER_TOKENS)

    def _asking(self, question: str) -> str:
        """What the model reads before it answers."""
        rendered = self._base.tokenizer.apply_chat_template(
            _asked(question), tokenize=False, add_generation_prompt=True
        )
        return str(rendered)

    def _encode(self, text: str) -> list[int]:
        return list(self._base.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _generate(self, prompts: Sequence[str], temperature: float, tokens: int) -> list[tuple[str, bool]]:
        """Continue texts; each continuation, and whether it ended by itself."""
        encoded = [self._encode(prompt) for prompt in prompts]
        written: dict[int, list[int]] = {}
        for places in _groups(encoded):
            rows = self._continue([encoded[place] for place in places], temperature, tokens)
            written |= zip(places, rows, strict=True)
        return [self._read(written[place]) for place in range(len(prompts))]

    @torch.no_grad()
    def _continue(self, encoded: Sequence[Sequence[int]], temperature: float, tokens: int) -> list[list[int]]:
        ids, mask = _pad_left(encoded, self._base.eos_ids[0])
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 100, "top_p": 0.97} if temperature else {}
        device = self._base.model.device
        output = self._base.model.generate(
            ids.to(device),
            attention_mask=mask.to(device),
            max_new_tokens=tokens,
            eos_token_id=self._base.eos_ids,
            pad_token_id=self._base.eos_ids[0],
            **sampling or {"do_sample": False},
        )
        rows: list[list[int]] = output[:, ids.shape[1] :].tolist()
        return rows

    def _read(self, ids: Sequence[int]) -> tuple[str, bool]:
        """A continuation's text up to what ends it: an id, or the template's own text behind a user's words."""
        ends = [place for place, token in enumerate(ids) if token in self._base.eos_ids]
        text = str(self._base.tokenizer.decode(ids[: ends[0]] if ends else ids, skip_special_tokens=True))
        before, end, _ = text.partition(self._after) if self._after else (text, "", "")
        return before.strip(), bool(ends or end)


def _asked(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


def _groups(rows: Sequence[Sequence[int]]) -> list[list[int]]:
    """Places of rows that are padded to one length without much waste: a cache of long rows is slow to move."""
    groups: list[list[int]] = []
    for place in sorted(range(len(rows)), key=lambda place: len(rows[place])):
        if not groups or (len(groups[-1]) + 1) * len(rows[place]) > _PADDED_TOKENS:
            groups.append([])
        groups[-1].append(place)
    return groups


def _pad_left(rows: Sequence[Sequence[int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[batch, nodes] ids, and where they are not padding."""
    nodes = max(map(len, rows))
    ids = torch.tensor([[pad] * (nodes - len(row)) + list(row) for row in rows])
    mask = torch.tensor([[0] * (nodes - len(row)) + [1] * len(row) for row in rows])
    return ids, mask
