"""Training data: conversations and texts as token sequences that know which of their tokens carry loss."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from spec_trt.errors import DataError
from spec_trt.json_lines import parse_json_lines, read_text

__all__ = ["Encoder", "TokenSequence", "count_answers", "load_sequences", "split_held_out"]

_FORMS = '{"messages": [{"role": ..., "content": TEXT}, ...]}, {"prompt": TEXT, "response": TEXT} or {"text": TEXT}'


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSequence:
    """One line of a data file, ready to train on.

    Attributes:
        input_ids: Its tokens.
        loss_mask: Which of them a head learns to predict: those of answers, with the token that ends them.
    """

    input_ids: list[int]
    loss_mask: list[bool]


def count_answers(sequences: Iterable[TokenSequence]) -> Counter[int]:
    """How often each id occurs in the answers."""
    return Counter(
        token
        for sequence in sequences
        for token, loss in zip(sequence.input_ids, sequence.loss_mask, strict=True)
        if loss
    )


class _UnusableError(Exception):
    """Why a line can't be learned from."""


class Encoder:
    """Encodes lines of the three forms as the model would see and write them.

    Every answer is encoded on its own behind the encoded prompt, as in generation: so the mask is exact.

    Args:
        tokenizer: The model's.
        eos_ids: Ids that end an answer.
        max_length: Tokens kept of a line.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, eos_ids: Sequence[int], max_length: int) -> None:
        self._tokenizer = tokenizer
        self._ends = [str(tokenizer.convert_ids_to_tokens(token)) for token in eos_ids]
        self._max_length = max_length

    def encode(self, data: dict[str, Any]) -> TokenSequence:
        """The tokens of a line.

        Raises:
            _UnusableError: There is nothing in it to learn from.
        """
        if "messages" in data:
            sequence = self._chat(_messages(data["messages"]), complete=data.get("complete", True) is not False)
        elif "prompt" in data and "response" in data:
            sequence = self._answered(_text(data["prompt"]), _text(data["response"]), data.get("complete") is not False)
        elif "text" in data:
            ids = list(self._tokenizer(_text(data["text"]))["input_ids"])
            sequence = TokenSequence(input_ids=ids, loss_mask=[True] * len(ids))
        else:
            raise _UnusableError("have none of the known forms")
        return self._cut(sequence)

    def _cut(self, sequence: TokenSequence) -> TokenSequence:
        ids, mask = sequence.input_ids[: self._max_length], sequence.loss_mask[: self._max_length]
        if not any(mask[2:]):  # a head predicts from the third token on
            fault = (
                f"have no answer within {self._max_length} tokens" if any(sequence.loss_mask[2:]) else "have no answer"
            )
            raise _UnusableError(fault)
        return TokenSequence(input_ids=ids, loss_mask=mask)

    def _answered(self, prompt: str, response: str, complete: bool) -> TokenSequence:
        if self._tokenizer.chat_template is not None:
            turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": response}]
            return self._chat(turns, complete=complete)
        start = list(self._tokenizer(prompt)["input_ids"])
        answer = self._encode(response)
        if complete and self._tokenizer.eos_token_id is not None:
            answer.append(self._tokenizer.eos_token_id)
        return TokenSequence(input_ids=start + answer, loss_mask=[False] * len(start) + [True] * len(answer))

    def _chat(self, messages: list[dict[str, str]], *, complete: bool) -> TokenSequence:
        if self._tokenizer.chat_template is None:
            raise _UnusableError("are conversations, and the model has no chat template")
        ids: list[int] = []
        mask: list[bool] = []
        last = max((index for index, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
        seen = ""
        for index in range(last + 1):
            if messages[index]["role"] != "assistant":
                continue
            prefix, whole = self._render(messages[:index], True), self._render(messages[: index + 1], False)
            if not prefix.startswith(seen) or not whole.startswith(prefix):
                raise _UnusableError("have a turn that the chat template writes in another way once it is answered")
            answer = self._answer(whole[len(prefix) :], messages[index]["content"], complete or index < last)
            asked_ids, answer_ids = self._encode(prefix[len(seen) :]), self._encode(answer)
            ids += asked_ids + answer_ids
            mask += [False] * len(asked_ids) + [True] * len(answer_ids)
            seen = prefix + answer
        return TokenSequence(input_ids=ids, loss_mask=mask)

    def _answer(self, tail: str, content: str, ended: bool) -> str:
        """What the model itself would have written: the answer as rendered, up to the token that ends the turn."""
        start = tail.find(content.strip())
        if start < 0:
            raise _UnusableError("have an answer that the chat template rewrites")
        stop = start + len(content.strip())
        if not ended:
            return tail[:stop]
        ends = [tail.find(end, stop) + len(end) for end in self._ends if tail.find(end, stop) >= 0]
        return tail[: min(ends, default=stop)]

    def _render(self, messages: list[dict[str, str]], ask: bool) -> str:
        try:
            rendered = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=ask)
        except Exception as error:
            raise _UnusableError("are refused by the chat template") from error
        return str(rendered)

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])


def load_sequences(paths: Iterable[Path], encoder: Encoder) -> list[TokenSequence]:
    """Read and encode data files, in order; lines that can't be used are left out.

    Raises:
        DataError: A file can't be read, or has no usable line: how many there are of each fault is named.
    """
    return [sequence for path in paths for sequence in _load_file(path, encoder)]


def _load_file(path: Path, encoder: Encoder) -> list[TokenSequence]:
    sequences, faults = [], Counter[str]()
    for _, data in parse_json_lines(read_text(path), path):
        try:
            sequences.append(encoder.encode(data))
        except _UnusableError as error:
            faults[str(error)] += 1
    if not sequences:
        found = ", ".join(f"{count} {fault}" for fault, count in faults.most_common()) or "the file is empty"
        raise DataError(f"{path} has no usable line ({found}): expected lines like {_FORMS}")
    return sequences


def split_held_out(
    sequences: Sequence[TokenSequence], share: float, seed: int
) -> tuple[list[TokenSequence], list[TokenSequence]]:
    """Part the sequences into those to train on and those to measure on, whatever their order.

    Equal sequences fall on the same side. A share above 0 holds out at least one.

    Raises:
        DataError: Nothing is left to train on.
    """
    keys = [hashlib.sha256(f"{seed} {sequence.input_ids}".encode()).digest() for sequence in sequences]
    distinct = sorted(set(keys))
    held_out = set(distinct[: max(1, round(share * len(distinct)))] if share else [])
    train = [sequence for sequence, key in zip(sequences, keys, strict=True) if key not in held_out]
    if not train:
        raise DataError(f"{len(sequences)} usable lines are too few to hold some out: add data, or hold out none")
    return train, [sequence for sequence, key in zip(sequences, keys, strict=True) if key in held_out]


def _messages(value: Any) -> list[dict[str, str]]:  # noqa: ANN401 - whatever the JSON line held
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        raise _UnusableError("have messages that are no list of objects")
    return [{"role": _text(message.get("role")), "content": _text(message.get("content"))} for message in value]


def _text(value: Any) -> str:  # noqa: ANN401 - whatever the JSON line held
    if not isinstance(value, str) or not value.strip():
        raise _UnusableError("have an empty text, or something else in its place")
    return value
