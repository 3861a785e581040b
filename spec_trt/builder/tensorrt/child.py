"""A graph built in a process of its own.

The library builds for minutes without a look at signals, prints past Python, and ends its process where it meets
what it did not expect; here each of these costs a build and no more.
"""

import json
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import IO, cast

from spec_trt import errors
from spec_trt.builder.tensorrt.graph_build import GraphBuild
from spec_trt.builder.tensorrt.library_log import last_words
from spec_trt.errors import BuildError

__all__ = ["build_in_child"]

_WORKER = "spec_trt.builder.tensorrt.worker"


def build_in_child(job: GraphBuild, begin: Callable[[str], object]) -> None:
    """Build a graph, and end the process that does on Ctrl-C or any other exception.

    Args:
        job: What to build.
        begin: Told of each step as it begins.

    Raises:
        SpecTrtError: As `graph_build.build_graph`; or the process ended before its work.
    """
    # A session of its own: Ctrl-C on the terminal is for this process, which then ends that one.
    command = [sys.executable, "-m", _WORKER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, text=False
    ) as child:
        try:
            _follow(child, job, begin)
        finally:
            child.kill()


def _follow(child: "subprocess.Popen[bytes]", job: GraphBuild, begin: Callable[[str], object]) -> None:
    stdin, stdout = cast(IO[bytes], child.stdin), cast(IO[bytes], child.stdout)
    with suppress(BrokenPipeError), stdin:  # it may have ended already; see below
        pickle.dump(job, stdin)
    for line in stdout:
        answer = json.loads(line)
        if "begin" in answer:
            begin(answer["begin"])
        elif "error" in answer:
            raise _named(answer["kind"], answer["error"])
        else:
            return
    ending, reason = _ending(child.wait()), last_words(job.log)
    raise BuildError(f"the process that built the graph {job.name!r} ended by itself ({ending}): {reason}")


def _named(kind: str, message: str) -> Exception:
    """An error of the other process, of the same kind here."""
    if kind == "MemoryError":
        return MemoryError(message)
    return getattr(errors, kind, BuildError)(message)  # the tree's own classes


def _ending(code: int) -> str:
    if code == -signal.SIGKILL:
        return "SIGKILL: was the memory full?"
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
