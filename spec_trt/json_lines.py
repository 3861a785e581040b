"""Text files and JSON lines, read with errors that name the place."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spec_trt.errors import DataError

__all__ = ["parse_json_lines", "read_text"]


def read_text(path: Path) -> str:
    """A UTF-8 file's content.

    Raises:
        DataError: It can't be read.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def parse_json_lines(content: str, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each line's object, and its place (file and line number) for messages; blank lines are skipped.

    Only line feeds end a line: JSON texts may hold other separators.

    Raises:
        DataError: A line is not a JSON object.
    """
    for number, line in enumerate(content.split("\n"), 1):
        if line.strip():
            yield f"{path}:{number}", _object(line, f"{path}:{number}")


def _object(line: str, place: str) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place} is not JSON ({error}): expected an object per line") from error
    if not isinstance(data, dict):
        raise DataError(f"{place} is not a JSON object: expected one per line")
    return data
