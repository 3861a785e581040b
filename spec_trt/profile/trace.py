"""A trace of real steps in the Chrome trace event format, which Perfetto and chrome://tracing open.

The format's document is "Trace Event Format" (Google, 2016). Every method is a process; its threads are the loop, with
a slice per pass and per phase, and the graphs' runs.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from spec_trt.profile.recording import DraftedPass, Recording, Span
from spec_trt.profile.session_times import SessionRun

__all__ = ["trace_json"]

_LOOP, _GRAPHS = 1, 2

Event = dict[str, Any]


def trace_json(engine: str, recordings: Sequence[Recording], runs: Sequence[SessionRun]) -> dict[str, Any]:
    """The trace as a JSON object, times in microseconds from its beginning.

    Args:
        engine: Its name.
        recordings: Generations of any methods, one sequence at a time.
        runs: Of the graphs meanwhile.
    """
    start = min((span.started for one in recordings for span in one.stats.spans), default=0.0)
    events = list(_metadata(engine, recordings))
    for recording in recordings:
        events += _loop_events(recording, _process(recordings, recording), start)
        events += _run_events(recording, runs, _process(recordings, recording), start)
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"engine": engine}}


def _methods(recordings: Sequence[Recording]) -> list[str]:
    return list(dict.fromkeys(recording.method for recording in recordings))


def _process(recordings: Sequence[Recording], recording: Recording) -> int:
    return _methods(recordings).index(recording.method) + 1


def _metadata(engine: str, recordings: Sequence[Recording]) -> Iterator[Event]:
    for process, method in enumerate(_methods(recordings), start=1):
        yield _named("process_name", process, 0, f"{method} ({engine})")
        yield {"name": "process_sort_index", "ph": "M", "pid": process, "tid": 0, "args": {"sort_index": process}}
        yield _named("thread_name", process, _LOOP, "decode loop")
        yield _named("thread_name", process, _GRAPHS, "graphs")


def _named(kind: str, process: int, thread: int, name: str) -> Event:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _loop_events(recording: Recording, process: int, start: float) -> Iterator[Event]:
    for span in recording.prefill:
        yield _slice("prefill", "phase", span.started, span.ended, process, _LOOP, start)
    for number, (spans, one) in enumerate(zip(recording.spans, recording.passes, strict=True)):
        begin, end = spans[0].started, spans[-1].ended
        yield _slice(f"pass {number}", "pass", begin, end, process, _LOOP, start) | {"args": _arguments(one)}
        yield from (_phase(span, process, start) for span in spans)


def _phase(span: Span, process: int, start: float) -> Event:
    return _slice(span.phase, "phase", span.started, span.ended, process, _LOOP, start)


def _arguments(one: DraftedPass) -> dict[str, int]:
    return {"nodes": one.nodes, "past": one.past, "tokens": len(one.accepted) + 1}


def _run_events(recording: Recording, runs: Sequence[SessionRun], process: int, start: float) -> Iterator[Event]:
    spans = recording.stats.spans
    first, last = spans[0].started, spans[-1].ended
    for run in runs:
        if first <= run.started <= last:
            yield _slice(run.graph, "graph", run.started, run.ended, process, _GRAPHS, start)


def _slice(name: str, kind: str, begin: float, end: float, process: int, thread: int, start: float) -> Event:
    """A complete event."""
    return {
        "name": name,
        "cat": kind,
        "ph": "X",
        "ts": round(1e6 * (begin - start), 3),
        "dur": round(1e6 * (end - begin), 3),
        "pid": process,
        "tid": thread,
    }
