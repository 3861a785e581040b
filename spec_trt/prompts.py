"""Prompts files: JSON lines in the forms that people keep prompts in."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spec_trt.errors import DataError
from spec_trt.json_lines import parse_json_lines, read_text

__all__ = ["PromptRecord", "load_prompts"]

FORMS = (
    '{"prompt": TEXT}, {"turns": [TEXT, ...]}, {"messages": [{"role": ..., "content": TEXT}, ...]} or {"text": TEXT}'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRecord:
    """One line of a prompts file.

    Attributes:
        turns: What the user says, turn by turn; at least one.
        category: The line's category, or None.
    """

    turns: list[str]
    category: str | None = None


def load_prompts(path: Path, *, limit: int | None = None, per_category: int | None = None) -> list[PromptRecord]:
    """Read a prompts file, in file order.

    Args:
        path: JSON lines: `{"prompt": ...}`, Spec-Bench's `{"turns": [...], "category": ...}`,
            `{"messages": [...]}` (its user turns) or `{"text": ...}`.
        limit: Keep at most so many, after `per_category`.
        per_category: Keep the first so many of every category.

    Raises:
        DataError: The file can't be read, a line has none of the forms, or nothing is left.
    """
    records = [_record(data, place) for place, data in parse_json_lines(read_text(path), path)]
    if per_category is not None:
        records = _first_per_category(records, per_category)
    if not records[:limit]:
        raise DataError(f"{path} has no prompt: expected lines like {FORMS}")
    return records[:limit]


def _record(data: dict[str, Any], place: str) -> PromptRecord:
    turns = _turns(data)
    if not turns or not all(isinstance(turn, str) and turn for turn in turns):
        raise DataError(f"{place} has no prompt: expected {FORMS}, each a non-empty text")
    category = data.get("category")
    if category is not None and not isinstance(category, str):
        raise DataError(f"{place} has the category {category!r}: expected a text")
    return PromptRecord(turns=turns, category=category)


def _turns(data: dict[str, Any]) -> list[Any]:
    if isinstance(data.get("turns"), list):
        return list(data["turns"])
    if isinstance(data.get("messages"), list):
        return [message.get("content") for message in data["messages"] if _is_of_user(message)]
    return [data[key] for key in ("prompt", "text") if key in data]


def _is_of_user(message: Any) -> bool:  # noqa: ANN401 - whatever the JSON line held
    return isinstance(message, dict) and message.get("role") == "user"


def _first_per_category(records: list[PromptRecord], count: int) -> list[PromptRecord]:
    seen: Counter[str | None] = Counter()
    kept = []
    for record in records:
        if seen[record.category] < count:
            kept.append(record)
        seen[record.category] += 1
    return kept
