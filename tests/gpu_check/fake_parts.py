"""Stands in for `worker`: parts that succeed, raise, hang, crash, or leave a process behind."""

import logging
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.gpu_check.found import Found
from tests.gpu_check.report import Outcome
from tests.gpu_check.worker import LOOK, Job, main


def run(job: Job, outcome: Outcome, _stop: float) -> None:
    """One of the parts."""
    if job.part == LOOK:
        outcome.figures = Found(gpu="GPU", capability="8.9", versions={"triton": "3"}, providers=["CPU"]).to_json()
        return
    outcome.table(["figure", "value"]).add([job.part, 1.0])
    outcome.record("figure", 1.0)
    if job.part == "torch":
        raise RuntimeError("CUDA error: no\nmore")
    if job.part == "timing":
        print("about to hang")
        time.sleep(600)
    if job.part == "peer":
        signal.raise_signal(signal.SIGSEGV)  # in this thread: nothing behind it runs
    if job.part == "kernels":
        left = subprocess.Popen(["sleep", "600"])
        (Path(job.work) / "left.pid").write_text(str(left.pid))
        logging.getLogger("spec_trt.runtime").warning("no %s here", "graphs")


if __name__ == "__main__":
    main(Path(sys.argv[1]), run)
