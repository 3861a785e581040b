"""c(n): what a pass with n nodes costs, and which kernels it is spent on."""

import json
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from spec_trt import names
from spec_trt.builder.onnxruntime_session import OrtGraph
from spec_trt.errors import ManifestError
from spec_trt.manifest import load_manifest

__all__ = ["BoundPass", "KernelCost", "PassCost", "kernel_profile", "measure_pass_cost"]

_WARM_UP = 3
_LAST_TOKEN = 97  # any id that every vocabulary has


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCost:
    """A pass of the base graph at one size.

    Attributes:
        past: Rows of the cache, all committed.
        nodes: Nodes of the tree, a chain; all of them projected to logits.
        latency_ms: The median over the repeats.
        ratio: c(n), the latency over that of the fewest nodes at the same past.
    """

    past: int
    nodes: int
    latency_ms: float
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCost:
    """All calls of one kind of kernel in a pass, as ONNX Runtime's profile has them (profiling adds to each)."""

    kernel: str
    calls: int
    total_ms: float
    share: float


def measure_pass_cost(
    engine: Path,
    nodes: Sequence[int] = (1, 2, 4, 8, 16, 32, 64),
    pasts: Sequence[int] = (256, 2048),
    threads: int = 2,
    repeats: int = 25,
) -> list[PassCost]:
    """Measure an engine's passes in plain ONNX Runtime, with everything bound in advance.

    Args:
        engine: An engine directory.
        nodes: Sizes of the tree; the smallest is what the others are compared with.
        pasts: Rows of the cache.
        threads: Threads inside one operator.
        repeats: Runs of each size; the sizes take turns, so that a busy moment hits all alike.

    Raises:
        ManifestError: The directory is damaged.
        BackendError: ONNX Runtime is missing or refuses the engine.
    """
    graph = OrtGraph(_base_graph(engine), threads=threads)
    costs = []
    for past in pasts:
        passes = [BoundPass(graph, past, count) for count in nodes]
        times: list[list[float]] = [[] for _ in passes]
        for _ in range(repeats + _WARM_UP):
            for found, bound in zip(times, passes, strict=True):
                bound.run()  # untimed: the pass before was of another size, which decoding's seldom is
                found.append(bound.run())
        medians = [1000 * median(found[_WARM_UP:]) for found in times]
        fewest = medians[nodes.index(min(nodes))]
        costs += [
            PassCost(past=past, nodes=count, latency_ms=latency, ratio=latency / fewest)
            for count, latency in zip(nodes, medians, strict=True)
        ]
    return costs


def kernel_profile(
    engine: Path, nodes: int, past: int = 256, threads: int = 2, repeats: int = 25, count: int = 5
) -> list[KernelCost]:
    """List the kernels a pass spends most of its time in.

    Args:
        engine: An engine directory.
        nodes: Nodes of the tree.
        past: Rows of the cache.
        threads: Threads inside one operator.
        repeats: Runs; the median of each node of the graph is taken.
        count: How many kernels to list.
    """
    with TemporaryDirectory(prefix="spec-trt-") as directory:
        graph = OrtGraph(_base_graph(engine), threads=threads, profile_prefix=Path(directory) / "profile")
        bound = BoundPass(graph, past, nodes)
        for _ in range(repeats + _WARM_UP):
            bound.run()
        events = json.loads(Path(graph.session.end_profiling()).read_text(encoding="utf-8"))
    return _summarize(events)[:count]


def _base_graph(engine: Path) -> Path:
    manifest = load_manifest(engine)
    if manifest.engine is None:
        raise ManifestError(f"{engine} is a bundle, not an engine: run `spec-trt build {engine} ENGINE`")
    return engine / manifest.graphs["base"].file


def _summarize(events: list[dict[str, Any]]) -> list[KernelCost]:
    """Sum the medians of the graph's nodes by kernel, costliest first."""
    durations: dict[tuple[str, str], list[float]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            durations[event["args"]["op_name"], event["name"]].append(event["dur"] / 1000)
    kernels: dict[str, list[float]] = defaultdict(list)
    for (kernel, _), found in durations.items():
        kernels[kernel].append(median(found[_WARM_UP:]))
    total = sum(map(sum, kernels.values()))
    costs = [
        KernelCost(kernel=kernel, calls=len(found), total_ms=sum(found), share=sum(found) / total)
        for kernel, found in kernels.items()
    ]
    return sorted(costs, key=lambda cost: -cost.total_ms)


class BoundPass:
    """A chain of nodes behind a full cache, bound to buffers of its own."""

    def __init__(self, graph: OrtGraph, past: int, nodes: int) -> None:
        self._session = graph.session
        feeds = _feeds(graph, past, nodes)
        for name in graph.cache_names:
            feeds[name].fill(0.01)  # memory never written is one page of zeros, and reading it costs nothing
        self._arrays = [*feeds.values()]
        self._io = graph.session.io_binding()
        for name, array in feeds.items():
            self._io.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        for item in graph.session.get_outputs():
            shape = [{"batch": 1, "nodes": nodes, "rows": nodes}.get(size, size) for size in item.shape]
            array = np.zeros(shape, np.int64 if item.type == "tensor(int64)" else np.float32)
            self._arrays.append(array)
            self._io.bind_output(item.name, "cpu", 0, array.dtype, shape, array.ctypes.data)

    def run(self) -> float:
        """Run once; returns the seconds it took."""
        begin = time.perf_counter()
        self._session.run_with_iobinding(self._io)
        return time.perf_counter() - begin


def _feeds(graph: OrtGraph, past: int, nodes: int) -> dict[str, np.ndarray]:
    positions = np.arange(nodes, dtype=np.int64)[None]
    return {
        names.INPUT_IDS: np.minimum(positions, _LAST_TOKEN),
        names.POSITION_IDS: past + positions,
        names.PAST_LENS: np.array([past], np.int64),
        names.TREE_MASK: np.tri(nodes, dtype=np.bool_)[None],
        names.LOGITS_ROWS: positions,
        **graph.cache(past),
    }
