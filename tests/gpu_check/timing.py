"""Times on a GPU: captured in a CUDA graph, so that Python is not in them, by CUDA events, medians."""

import statistics
import time
from collections.abc import Callable, Sequence

import torch

Work = Callable[[], object]


def graph_ms(works: Sequence[Work], *, repeats: int = 10) -> float:
    """Milliseconds of one of several works on equal operands, by the median replay of all of them in turn.

    The works' operands should together be larger than the GPU's cache, or they are timed out of it.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for work in works:
            work()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for work in works:
            work()
    for _ in range(2):
        graph.replay()
    return event_ms(graph.replay, repeats=repeats) / len(works)


def event_ms(work: Work, *, repeats: int = 10) -> float:
    """Milliseconds of the GPU's time for some work, the median of `repeats`."""
    pairs = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        pairs.append((begin, end))
    torch.cuda.synchronize()
    return float(statistics.median(begin.elapsed_time(end) for begin, end in pairs))


def host_ms(work: Work, *, repeats: int = 10) -> float:
    """Milliseconds on the host's clock for work that waits for the GPU itself, the median of `repeats`."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times)


def copy_bandwidth(*, size: int = 1 << 31) -> float:
    """Bytes per second that a copy on the GPU moves, counted as read and written."""
    source, target = (torch.randn(size // 4, device="cuda") for _ in range(2))
    return 2 * size / (event_ms(lambda: target.copy_(source)) / 1e3)


def sets_needed(nbytes: int, cache_bytes: int, *, limit: int = 64) -> int:
    """How many sets of operands are twice the GPU's cache."""
    return max(1, min(limit, -(-2 * cache_bytes // max(nbytes, 1))))
