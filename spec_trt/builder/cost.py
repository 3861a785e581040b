"""c(n): what a pass with n nodes costs, the draft heads' too, and which kernels it is spent on."""

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

__all__ = [
    "BoundPass",
    "HeadCost",
    "KernelCost",
    "PassCost",
    "kernel_profile",
    "measure_head_cost",
    "measure_pass_cost",
]

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
class HeadCost:
    """A pass of a draft head's graph at one size.

    Attributes:
        graph: `medusa`, `eagle` or `eagle_fuse`.
        past: Rows of its cache, all committed; None for a graph without one.
        nodes: Nodes of a level, or rows of hidden states.
        latency_ms: The median over the repeats.
    """

    graph: str
    past: int | None
    nodes: int
    latency_ms: float


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
    threads: int | None = None,
    repeats: int = 25,
) -> list[PassCost]:
    """Measure an engine's passes in plain ONNX Runtime, with everything bound in advance.

    Args:
        engine: An engine directory.
        nodes: Sizes of the tree; the smallest is what the others are compared with.
        pasts: Rows of the cache.
        threads: Threads inside one operator; the number of cores when None.
        repeats: Runs of each size; the sizes take turns, so that a busy moment hits all alike.

    Raises:
        ManifestError: The directory is damaged.
        BackendError: ONNX Runtime is missing or refuses the engine.
    """
    graph = OrtGraph(_graphs(engine)[names.BASE], threads=threads)
    costs = []
    for past in pasts:
        medians = _medians_ms(graph, past, nodes, repeats)
        fewest = medians[nodes.index(min(nodes))]
        costs += [
            PassCost(past=past, nodes=count, latency_ms=latency, ratio=latency / fewest)
            for count, latency in zip(nodes, medians, strict=True)
        ]
    return costs


def measure_head_cost(
    engine: Path,
    nodes: Sequence[int] = (1, 2, 4, 8, 16),
    pasts: Sequence[int] = (256, 2048),
    threads: int | None = None,
    repeats: int = 25,
) -> list[HeadCost]:
    """Measure the passes of an engine's draft heads; nothing where it has none.

    Arguments and errors are `measure_pass_cost`'s.
    """
    costs = []
    for name, path in _graphs(engine).items():
        if name == names.BASE:
            continue
        graph = OrtGraph(path, threads=threads)
        for past in pasts if graph.cache_names else (None,):
            medians = _medians_ms(graph, past or 0, nodes, repeats)
            costs += [
                HeadCost(graph=name, past=past, nodes=count, latency_ms=latency)
                for count, latency in zip(nodes, medians, strict=True)
            ]
    return costs


def _medians_ms(graph: OrtGraph, past: int, nodes: Sequence[int], repeats: int) -> list[float]:
    """The median latency at each size."""
    passes = [BoundPass(graph, past, count) for count in nodes]
    times: list[list[float]] = [[] for _ in passes]
    for _ in range(repeats + _WARM_UP):
        for found, bound in zip(times, passes, strict=True):
            bound.run()  # untimed: the pass before was of another size, which decoding's seldom is
            found.append(bound.run())
    return [1000 * median(found[_WARM_UP:]) for found in times]


def kernel_profile(
    engine: Path, nodes: int, past: int = 256, threads: int | None = None, repeats: int = 25, count: int = 5
) -> list[KernelCost]:
    """List the kernels a pass spends most of its time in.

    Args:
        engine: An engine directory.
        nodes: Nodes of the tree.
        past: Rows of the cache.
        threads: Threads inside one operator; the number of cores when None.
        repeats: Runs; the median of each node of the graph is taken.
        count: How many kernels to list.
    """
    with TemporaryDirectory(prefix="spec-trt-") as directory:
        graph = OrtGraph(_graphs(engine)[names.BASE], threads=threads, profile_prefix=Path(directory) / "profile")
        bound = BoundPass(graph, past, nodes)
        for _ in range(repeats + _WARM_UP):
            bound.run()
        events = json.loads(Path(graph.session.end_profiling()).read_text(encoding="utf-8"))
    return _summarize(events)[:count]


def _graphs(engine: Path) -> dict[str, Path]:
    """The engine's graphs by name."""
    manifest = load_manifest(engine)
    if manifest.engine is None:
        raise ManifestError(f"{engine} is a bundle, not an engine: run `spec-trt build {engine} ENGINE`")
    if manifest.engine.backend != "ort":
        raise ManifestError(
            f"{engine} was built for {manifest.engine.backend}: `cost` measures ONNX Runtime's engines; "
            "see `spec-trt inspect`, or `python -m tests.gpu_check`"
        )
    return {name: engine / graph.file for name, graph in manifest.graphs.items()}


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
        feeds = graph.feeds([min(node, _LAST_TOKEN) for node in range(nodes)], past)
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
