"""Texts to calibrate on or to evaluate with, from the files people keep them in."""

import json
from pathlib import Path
from typing import Any

from spec_trt.errors import DataError

__all__ = ["load_texts"]

_FORMS = (
    '{"text": TEXT}, {"prompt": TEXT}, {"turns": [TEXT, ...]} or {"messages": [{"role": ..., "content": TEXT}, ...]}'
)


def load_texts(path: Path) -> list[str]:
    """Read a file of texts, in file order.

    Args:
        path: JSON lines of the forms `text`, `prompt`, `turns` (the first is taken) and `messages`
            (all contents, one after the other); any other file is plain text, cut at empty lines.

    Raises:
        DataError: The file can't be read, holds no text, or a line has none of the forms.
    """
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if content.lstrip().startswith("{"):
        lines = enumerate(content.splitlines(), 1)
        texts = [_text(line, f"{path}:{number}") for number, line in lines if line.strip()]
    else:
        texts = [part.strip() for part in content.split("\n\n") if part.strip()]
    if not texts:
        raise DataError(f"{path} holds no text: expected JSON lines like {_FORMS}, or plain text")
    return texts


def _text(line: str, place: str) -> str:
    try:
        data = json.loads(line)
    except ValueError as error:
        raise DataError(f"{place} is not JSON ({error}): expected lines like {_FORMS}") from error
    text = _join(data) if isinstance(data, dict) else None
    if not isinstance(text, str) or not text:
        raise DataError(f"{place} has no text: expected {_FORMS}")
    return text


def _join(data: dict[str, Any]) -> Any:  # noqa: ANN401 - whatever the JSON line held
    if isinstance(data.get("turns"), list) and data["turns"]:
        return data["turns"][0]
    if isinstance(data.get("messages"), list):
        contents = [message.get("content") for message in data["messages"] if isinstance(message, dict)]
        return "\n\n".join(content for content in contents if isinstance(content, str))
    return data.get("prompt", data.get("text"))
