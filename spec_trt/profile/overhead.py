"""What the loop itself takes of a step: all that is not a graph's run."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from spec_trt.profile.recording import Recording
from spec_trt.profile.session_times import SessionRun

__all__ = ["Overhead", "measure_overhead"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Medians over the steps of plain decoding, from the start of one verify pass to the start of the next.

    Attributes:
        batch: Sequences.
        step_ms: The whole step.
        loop_ms: What of it is not a graph's run.
        share: The latter's share.
        besides_ms: What of it is neither the verify pass, the small arrays it is given included, nor drafting.
    """

    batch: int
    step_ms: float
    loop_ms: float
    share: float
    besides_ms: float


def measure_overhead(recordings: Sequence[Recording], runs: Sequence[SessionRun]) -> Overhead:
    """Measure the loop in the steps that all of some sequences took together.

    Args:
        recordings: Of sequences decoded together, by plain decoding.
        runs: Of all graphs meanwhile, in order; others before and after do no harm.
    """
    serving = defaultdict[tuple[float, float], int](int)
    for recording in recordings:
        for group in recording.spans:
            serving[next((span.started, span.ended) for span in group if span.phase == "verify")] += 1
    verified = sorted(serving)
    begins = [run.started for run in runs]
    steps: list[tuple[float, float, float]] = []
    for (started, ended), (following, _) in pairwise(verified):
        within = runs[bisect_left(begins, started) : bisect_left(begins, following)]
        if serving[started, ended] == len(recordings) and len(within) == 1:  # more: a prompt was read in between
            step = following - started
            steps.append((step, step - (within[0].ended - within[0].started), following - ended))
    if not steps:
        return Overhead(batch=len(recordings), step_ms=0.0, loop_ms=0.0, share=0.0, besides_ms=0.0)
    step, loop, besides = (1e3 * median(values) for values in zip(*steps, strict=True))
    return Overhead(batch=len(recordings), step_ms=step, loop_ms=loop, share=loop / step, besides_ms=besides)
