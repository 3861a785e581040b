"""What the parts of the check found: tables for people, JSON for programs."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from spec_trt.table import format_table
from tests.gpu_check.found import Found

Status = Literal["ok", "FAILED", "skipped"]


class Table:
    """Rows under a header; numbers get four digits.

    Args:
        header: What the columns are called.
        changed: Told of every new row.
    """

    def __init__(self, header: Sequence[str], changed: Callable[[], object] = lambda: None) -> None:
        self.header, self.rows, self._changed = list(header), list[list[str]](), changed

    def add(self, row: Sequence[Any]) -> None:
        """Add a row."""
        self.rows.append([_cell(value) for value in row])
        self._changed()

    def __str__(self) -> str:
        return format_table(self.header, self.rows)


@dataclass(kw_only=True)
class Outcome:
    """What one part has found so far; every change is saved, so that a part that ends early has not run for nothing.

    Attributes:
        figures: Everything measured, as JSON has it.
        tables: The same for people.
        failures: A line for everything that is not as it must be.
        notes: What else should be known.
        done: Whether the part came to its end.
        path: Where it is saved; nowhere when None.
    """

    figures: dict[str, Any] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    done: bool = False
    path: Path | None = None

    def expect(self, holds: bool, failure: str) -> None:
        """Note a failure, unless something holds."""
        if not holds:
            self.failures.append(failure)
            self.save()

    def note(self, text: str) -> None:
        """Note what should be known."""
        self.notes.append(text)
        self.save()

    def record(self, name: str, figures: Any) -> None:
        """Keep what was measured."""
        self.figures[name] = figures
        self.save()

    def table(self, header: Sequence[str]) -> Table:
        """Begin a table."""
        self.tables.append(Table(header, self.save))
        return self.tables[-1]

    def save(self) -> None:
        """Write everything to the file, in place of what was there, in one step."""
        if self.path is None:
            return
        tables = [{"header": table.header, "rows": table.rows} for table in self.tables]
        data = {"figures": self.figures, "failures": self.failures, "notes": self.notes, "done": self.done}
        beside = self.path.with_suffix(".new")
        beside.write_text(json.dumps(data | {"tables": tables}, default=str), encoding="utf-8")
        os.replace(beside, self.path)


def load_outcome(path: Path) -> Outcome:
    """What a part has saved; nothing where it did not come to that."""
    if not path.exists():
        return Outcome()
    data = json.loads(path.read_text(encoding="utf-8"))
    tables = data.pop("tables")
    outcome = Outcome(**data)
    for saved in tables:
        table = outcome.table(saved["header"])
        table.rows.extend(saved["rows"])
    return outcome


@dataclass(frozen=True, kw_only=True)
class PartResult:
    """A part that ran, or why it did not.

    Attributes:
        part: Its name.
        status: How it ended.
        reason: Why it did not end well.
        seconds: How long it took.
        outcome: What it found.
        last_lines: The end of what it printed, where it failed.
    """

    part: str
    status: Status
    reason: str
    seconds: float = 0.0
    outcome: Outcome = field(default_factory=Outcome)
    last_lines: Sequence[str] = ()


def exit_code(results: Sequence[PartResult]) -> int:
    """0 where all that ran holds, 1 where something does not, 2 where nothing ran."""
    if any(result.status == "FAILED" for result in results):
        return 1
    return 0 if any(result.status == "ok" for result in results) else 2


def summary(results: Sequence[PartResult]) -> str:
    """The last table: each part, how it ended, and why."""
    rows = [[item.part, item.status, f"{item.seconds:.0f}"] for item in results]
    lines = format_table(["part", "result", "seconds"], rows).splitlines()
    return "\n".join(
        [*lines[:2], *(f"{line}  {item.reason}".rstrip() for line, item in zip(lines[2:], results, strict=True))]
    )


def plain_rates(results: Sequence[PartResult]) -> str | None:
    """Plain decoding of every part that measured it, beside PyTorch alone."""
    rates = {item.part: rate for item in results if (rate := item.outcome.figures.get("plain_tokens_per_s"))}
    if not rates:
        return None
    table, peer = Table(["plain decoding", "tok/s", "over PyTorch's"]), rates.get("peer")
    for part, rate in rates.items():
        table.add([part, rate, rate / peer if peer else None])
    return str(table)


def write_json(path: Path, found: Found, settings: Mapping[str, Any], results: Sequence[PartResult]) -> None:
    """Write everything."""
    data = {"found": found.to_json(), "settings": dict(settings), "parts": {}}
    data["parts"] = {
        result.part: {
            "status": result.status,
            "reason": result.reason,
            "seconds": result.seconds,
            "failures": result.outcome.failures,
            "notes": result.outcome.notes,
            "figures": result.outcome.figures,
            "last_lines": list(result.last_lines),
        }
        for result in results
    }
    path.write_text(json.dumps(data, indent=2, default=str) + "\n", encoding="utf-8")


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else str(value)
