"""Texts to calibrate on, to evaluate with or to count tokens in, from the files people keep them in."""

from pathlib import Path
from typing import Any

from spec_trt.errors import DataError
from spec_trt.json_lines import parse_json_lines, read_text

__all__ = ["load_texts"]

_FORMS = (
    '{"text": TEXT}, {"prompt": TEXT, "response": TEXT}, {"turns": [TEXT, ...]} or '
    '{"messages": [{"role": ..., "content": TEXT}, ...]}'
)


def load_texts(path: Path) -> list[str]:
    """Read a file of texts, in file order.

    Args:
        path: JSON lines of the forms `text`, `prompt` (and its `response`, if there is one), `turns` (the first
            is taken) and `messages` (all contents, one after the other); any other file is plain text, cut at
            empty lines.

    Raises:
        DataError: The file can't be read, holds no text, or a line has none of the forms.
    """
    content = read_text(path)
    if content.lstrip().startswith("{"):
        texts = [_text(data, place) for place, data in parse_json_lines(content, path)]
    else:
        texts = [part.strip() for part in content.split("\n\n") if part.strip()]
    if not texts:
        raise DataError(f"{path} holds no text: expected JSON lines like {_FORMS}, or plain text")
    return texts


def _text(data: dict[str, Any], place: str) -> str:
    text = _join(data)
    if not isinstance(text, str) or not text:
        raise DataError(f"{place} has no text: expected {_FORMS}")
    return text


def _join(data: dict[str, Any]) -> Any:  # noqa: ANN401 - whatever the JSON line held
    if isinstance(data.get("turns"), list) and data["turns"]:
        return data["turns"][0]
    if isinstance(data.get("messages"), list):
        contents = [message.get("content") for message in data["messages"] if isinstance(message, dict)]
        return "\n\n".join(content for content in contents if isinstance(content, str))
    if isinstance(data.get("prompt"), str) and isinstance(data.get("response"), str):
        return data["prompt"] + "\n\n" + data["response"]
    return data.get("prompt", data.get("text"))
