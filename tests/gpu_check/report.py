"""What the parts of the check found: a table for people, JSON for programs."""

import json
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from spec_trt.table import format_table
from tests.gpu_check.found import Found

Status = Literal["ok", "FAILED", "skipped"]


@dataclass(kw_only=True)
class Outcome:
    """What one part found.

    Attributes:
        figures: Everything measured, as JSON has it.
        tables: The same for people.
        failures: A line for everything that is not as it must be.
        notes: What else should be known.
    """

    figures: dict[str, Any] = field(default_factory=dict)
    tables: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def expect(self, holds: bool, failure: str) -> None:
        """Note a failure, unless something holds."""
        if not holds:
            self.failures.append(failure)

    def add_table(self, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Add a table; numbers get four digits."""
        self.tables.append(format_table(header, [[_cell(value) for value in row] for row in rows]))


@dataclass(frozen=True, kw_only=True)
class PartResult:
    """A part that ran, or why it did not."""

    part: str
    status: Status
    reason: str
    seconds: float
    outcome: Outcome


def run_part(part: str, run: Callable[[], Outcome], skipped: str | None) -> PartResult:
    """Run a part; whatever it raises is its failure, not the check's end."""
    if skipped is not None:
        return PartResult(part=part, status="skipped", reason=skipped, seconds=0.0, outcome=Outcome())
    started = time.perf_counter()
    try:
        outcome = run()
    except Exception as error:
        traceback.print_exc()
        outcome = Outcome(failures=[f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"])
    return PartResult(
        part=part,
        status="FAILED" if outcome.failures else "ok",
        reason="; ".join(outcome.failures[:3]),
        seconds=time.perf_counter() - started,
        outcome=outcome,
    )


def exit_code(results: Sequence[PartResult]) -> int:
    """0 where all that ran holds, 1 where something does not, 2 where nothing ran."""
    if any(result.status == "FAILED" for result in results):
        return 1
    return 0 if any(result.status == "ok" for result in results) else 2


def summary(results: Sequence[PartResult]) -> str:
    """The last table: each part, how it ended, and why."""
    rows = [[item.part, item.status, f"{item.seconds:.0f}", item.reason] for item in results]
    lines = format_table(["part", "result", "seconds"], [row[:3] for row in rows]).splitlines()
    return "\n".join([*lines[:2], *(f"{line}  {row[3]}".rstrip() for line, row in zip(lines[2:], rows, strict=True))])


def write_json(path: Path, found: Found, settings: Mapping[str, Any], results: Sequence[PartResult]) -> None:
    """Write everything."""
    data = {
        "found": {
            "gpu": found.gpu,
            "capability": found.capability,
            "versions": found.versions,
            "providers": list(found.providers),
        },
        "settings": dict(settings),
        "parts": {
            result.part: {
                "status": result.status,
                "reason": result.reason,
                "seconds": result.seconds,
                "failures": result.outcome.failures,
                "notes": result.outcome.notes,
                "figures": result.outcome.figures,
            }
            for result in results
        },
    }
    path.write_text(json.dumps(data, indent=2, default=str) + "\n", encoding="utf-8")


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else str(value)
