"""Data that the model writes itself: it continues its chat template's user turn into a question, then answers it."""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import set_seed

from spec_trt.errors import DataError
from spec_trt.json_lines import parse_json_lines, read_text
from spec_trt.training.base import LoadedBase

__all__ = ["SelfDistiller", "self_distill"]

_MARK = "QUESTION"
_BATCH = 16
_QUESTION_TOKENS = 96
_ANSWER_TOKENS = 256
_TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_TRIES_PER_CONVERSATION = 5


def self_distill(base: LoadedBase, count: int, file: Path, seed: int) -> None:
    """Let the model write conversations until `file` has so many; those that are there already count.

    What an earlier call was killed in the middle of is cut off, and the batches behind it are others than before it.

    Args:
        base: The model.
        count: How many.
        file: JSON lines of `messages`, each with `complete`: whether the answer ended by itself, and `batch`.
        seed: Of what is drawn.

    Raises:
        DataError: The model has no chat template that questions can be taken from, or hardly writes any.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    distiller = SelfDistiller(base)
    lines = _mended(file) if file.exists() else []
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


def _seed_of(batch: int, seed: int) -> int:
    """Another for every batch of every seed."""
    return int.from_bytes(hashlib.sha256(f"{seed} {batch}".encode()).digest()[:4], "big")


class SelfDistiller:
    """Samples questions and answers of a model with a chat template.

    Args:
        base: The model.

    Raises:
        DataError: The model has no chat template, or one that rewrites what users say.
    """

    def __init__(self, base: LoadedBase) -> None:
        self._base = base
        self._before, self._after = self._user_turn()

    def conversations(self, count: int, seed: int, first: int = 0) -> Iterator[dict[str, Any]]:
        """Write so many, temperatures from 0 to 1 in turn.

        Args:
            count: How many.
            seed: Of what is drawn.
            first: The first batch: what is drawn in one depends on its number and the seed alone.

        Raises:
            DataError: The model writes hardly any that are usable.
        """
        given = 0
        for batch in range(first, first + max(1, count) * _TRIES_PER_CONVERSATION):
            if given >= count:
                return
            set_seed(_seed_of(batch, seed))
            temperature = _TEMPERATURES[batch % len(_TEMPERATURES)]
            for conversation in self._answers(self._questions(), temperature):
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

    def _answers(self, questions: Sequence[str], temperature: float) -> Iterator[dict[str, Any]]:
        if not questions:
            return
        prompts = [
            str(self._base.tokenizer.apply_chat_template(_asked(question), tokenize=False, add_generation_prompt=True))
            for question in questions
        ]
        answers = self._generate(prompts, temperature, _ANSWER_TOKENS)
        for question, (answer, complete) in zip(questions, answers, strict=True):
            if answer:
                messages = [*_asked(question), {"role": "assistant", "content": answer}]
                yield {"temperature": temperature, "messages": messages, "complete": complete}

    @torch.no_grad()
    def _generate(self, prompts: Sequence[str], temperature: float, tokens: int) -> list[tuple[str, bool]]:
        """Continue texts; each continuation, and whether it ended by itself."""
        encoded = [self._base.tokenizer(prompt, add_special_tokens=False)["input_ids"] for prompt in prompts]
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
        return [self._read(row) for row in output[:, ids.shape[1] :].tolist()]

    def _read(self, ids: Sequence[int]) -> tuple[str, bool]:
        """A continuation's text up to what ends it: an id, or the template's own text behind a user's words."""
        ends = [place for place, token in enumerate(ids) if token in self._base.eos_ids]
        text = str(self._base.tokenizer.decode(ids[: ends[0]] if ends else ids, skip_special_tokens=True))
        before, end, _ = text.partition(self._after) if self._after else (text, "", "")
        return before.strip(), bool(ends or end)


def _asked(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


def _pad_left(rows: Sequence[Sequence[int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[batch, nodes] ids, and where they are not padding."""
    nodes = max(map(len, rows))
    ids = torch.tensor([[pad] * (nodes - len(row)) + list(row) for row in rows])
    mask = torch.tensor([[0] * (nodes - len(row)) + [1] * len(row) for row in rows])
    return ids, mask
