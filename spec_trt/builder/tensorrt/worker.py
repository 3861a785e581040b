"""The process that a graph is built in: `python -m spec_trt.builder.tensorrt.worker`, a pickled `GraphBuild` on stdin.

It answers with lines of JSON on stdout: `begin`, and in the end `done` or `error`. What the library itself prints
goes to the log, like all else that it says.
"""

import json
import os
import pickle
import sys
from typing import TextIO

from spec_trt.builder.tensorrt.graph_build import GraphBuild, build_graph
from spec_trt.builder.tensorrt.library_log import library_log
from spec_trt.errors import SpecTrtError
from spec_trt.tensorrt import import_tensorrt

__all__ = ["main"]


def main() -> None:
    """Build the graph."""
    job: GraphBuild = pickle.load(sys.stdin.buffer)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with job.log.open("a") as raw:
        os.dup2(raw.fileno(), 1)
        os.dup2(raw.fileno(), 2)
    try:
        import_tensorrt(job.backend)  # before Polygraphy, which the log imports
        with library_log(job.log) as log:
            build_graph(job, log, lambda step: _answer(answers, begin=step))
    except (SpecTrtError, OSError, MemoryError) as error:
        _answer(answers, error=str(error) or type(error).__name__, kind=type(error).__name__)
    else:
        _answer(answers, done=True)


def _answer(stream: TextIO, **answer: object) -> None:
    try:
        stream.write(json.dumps(answer) + "\n")
        stream.flush()
    except BrokenPipeError:  # whoever asked is gone
        os._exit(1)


if __name__ == "__main__":
    main()
