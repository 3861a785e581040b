"""A part in a process of its own: whatever becomes of that, this one goes on, with what the part had found."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.gpu_check.report import PartResult, load_outcome

_LAST_LINES = 25
_KILL_SECONDS = 5.0  # for a process that was killed to be gone: one that a driver holds may stay


def run_child(part: str, command: Sequence[str], *, result: Path, log: Path, seconds: float) -> PartResult:
    """Run a part's command, and end it and all that it started when its time is over.

    Args:
        part: Its name.
        command: What runs it, and saves its `Outcome` to `result`.
        result: That file.
        log: Where what it prints goes.
        seconds: That it may take.
    """
    started = time.monotonic()
    code = _run(command, log, seconds)
    outcome = load_outcome(result)
    ending = _ending(code, seconds, done=outcome.done)
    reasons = [*([ending] if ending else []), *outcome.failures[:3]]
    return PartResult(
        part=part,
        status="FAILED" if reasons else "ok",
        reason="; ".join(reasons),
        seconds=time.monotonic() - started,
        outcome=outcome,
        last_lines=_last_lines(log) if reasons else (),
    )


def _run(command: Sequence[str], log: Path, seconds: float) -> int | None:
    """The exit code; None where the time was over."""
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            return process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it started, and it where it still runs
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_KILL_SECONDS)


def _ending(code: int | None, seconds: float, *, done: bool) -> str | None:
    """How a process ended, where that was not well."""
    if code is None:
        return f"timed out after {seconds:.0f} s"
    if code < 0:
        when = ", its work done" if done else ""
        return f"crashed with signal {-code} ({signal.Signals(-code).name}){when}"
    return None if done else f"ended with exit code {code} before its work was done"


def _last_lines(log: Path) -> list[str]:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return [line.rstrip() for line in lines if line.strip()][-_LAST_LINES:]
