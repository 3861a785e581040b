"""The process of one part: `python -m tests.gpu_check.worker JOB`, a file that `Job` wrote."""

import argparse
import faulthandler
import json
import logging
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.gpu_check.report import Outcome

LOOK = "found"
"""What looks for GPU and libraries; no part of the check, but in a process like one."""

_STOP_AFTER = 0.85  # of the time: then nothing more is begun, and the part ends by itself
_TRACE_BEFORE = 2.0  # seconds from the end: where a part hangs is printed then


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a part's process is told.

    Attributes:
        part: Its name.
        arguments: The check's own command line.
        work: Where files are made.
        backend: The TensorRT back end.
        has_bf16: Whether the GPU can do bf16.
        seconds: That it may take.
        result: Where its `Outcome` is saved.
    """

    part: str
    arguments: list[str]
    work: str
    backend: str | None
    has_bf16: bool
    seconds: float
    result: str

    def command(self, path: Path, module: str = "tests.gpu_check.worker") -> list[str]:
        """What runs it, once it is written to a file."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return [sys.executable, "-u", "-m", module, str(path)]


class _Notes(logging.Handler):
    """Notes what the package warns of: passes that run without CUDA graphs, say."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(logging.WARNING)
        self._outcome = outcome

    def emit(self, record: logging.LogRecord) -> None:
        self._outcome.note(record.getMessage())


def main(path: Path, run: Callable[[Job, Outcome, float], None]) -> None:
    """Run a part and save what it finds, whatever it raises.

    Args:
        path: The job's file.
        run: Does the work of a part, and begins nothing more at a time by `time.monotonic`.
    """
    started = time.monotonic()
    job = Job(**json.loads(path.read_text(encoding="utf-8")))
    faulthandler.enable()
    faulthandler.dump_traceback_later(max(job.seconds - _TRACE_BEFORE, 0.9 * job.seconds), exit=False)
    outcome = Outcome(path=Path(job.result))
    logging.getLogger("spec_trt").addHandler(_Notes(outcome))
    try:
        run(job, outcome, started + _STOP_AFTER * job.seconds)
    except Exception as error:
        traceback.print_exc()
        outcome.failures.append(f"{type(error).__name__}: {' '.join(str(error).split())[:400]}")
    outcome.done = True
    outcome.save()
    faulthandler.cancel_dump_traceback_later()


def _run(job: Job, outcome: Outcome, stop: float) -> None:
    if job.part == LOOK:
        from tests.gpu_check.found import find

        outcome.figures = find().to_json()
        return
    from tests.gpu_check.check import Check
    from tests.gpu_check.options import files_of, parse

    options: argparse.Namespace = parse(job.arguments)
    files = files_of(options, Path(job.work))
    Check(options, files, outcome, backend=job.backend, has_bf16=job.has_bf16, stop=stop).run(job.part)


if __name__ == "__main__":
    main(Path(sys.argv[1]), _run)
