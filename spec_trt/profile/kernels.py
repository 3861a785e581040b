"""Which operators a verify pass is spent on: ONNX Runtime's own profile of real passes."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from spec_trt import names
from spec_trt.errors import ConfigError
from spec_trt.manifest import Manifest
from spec_trt.profile.cost_curve import chain, fill, in_a_thread
from spec_trt.runtime.backend import graph_facts
from spec_trt.runtime.ort_session import OrtSession
from spec_trt.runtime.target import Target

__all__ = ["GraphNodeCost", "KernelProfile", "OperatorCost", "check_profiled", "profile_kernels"]

_WARM_UP = 3
_LARGEST = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCost:
    """All nodes of one operator type, as ONNX Runtime's profile has them: profiling adds a little to each."""

    operator: str
    calls: int
    ms: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphNodeCost:
    """One node of the graph; `output` is the shape of what it gives first, such as 1x16x576."""

    name: str
    operator: str
    output: str
    ms: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelProfile:
    """Where the time of a pass goes, the largest first.

    Attributes:
        nodes: Of the tree.
        past: Committed rows.
        total_ms: Of all operators.
        operators: By type.
        graph_nodes: By themselves.
    """

    nodes: int
    past: int
    total_ms: float
    operators: Sequence[OperatorCost]
    graph_nodes: Sequence[GraphNodeCost]


def check_profiled(manifest: Manifest) -> None:
    """Refuse an engine of a library that has no such profile.

    Raises:
        ConfigError: It is one of TensorRT's.
    """
    if manifest.engine is not None and manifest.engine.backend != "ort":
        raise ConfigError(
            f"--kernels is ONNX Runtime's own profile, the engine was built for {manifest.engine.backend}: leave it "
            "out, or use NVIDIA's Nsight Systems"
        )


def profile_kernels(
    directory: Path,
    manifest: Manifest,
    *,
    nodes: int,
    past: int,
    device: str | None = None,
    threads: int | None = None,
    rounds: int = 15,
) -> KernelProfile:
    """Profile a verify pass, in a session of its own.

    Args:
        directory: The engine's.
        manifest: Its manifest.
        nodes: Of the tree.
        past: Committed rows.
        device: `cpu` or `cuda`.
        threads: Threads inside one operator; the cores when None.
        rounds: Passes; the median of each node of the graph is taken.
    """
    with TemporaryDirectory(prefix="spec-trt-") as folder:
        path = directory / graph_facts(manifest, names.BASE).file
        session = OrtSession(path, device=device or "cpu", threads=threads, profile_prefix=Path(folder) / "profile")
        target = Target(session, manifest.model)
        fill(target, past)
        in_a_thread(lambda: [target.verify([chain(nodes)]) for _ in range(rounds + _WARM_UP)])
        events = json.loads(session.end_profiling().read_text(encoding="utf-8"))
    return _summarize(events, nodes, past)


def _summarize(events: Sequence[Mapping[str, Any]], nodes: int, past: int) -> KernelProfile:
    runs: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            details = event["args"]
            node = event["name"].removesuffix("_kernel_time"), details["op_name"], _first_shape(details)
            runs[node].append(event["dur"] / 1000)
    medians = {node: median(found[_WARM_UP:] or found) for node, found in runs.items()}
    total = sum(medians.values())
    by_operator: dict[str, list[float]] = defaultdict(list)
    for (_, operator, _), ms in medians.items():
        by_operator[operator].append(ms)
    operators = [
        OperatorCost(operator=operator, calls=len(found), ms=sum(found), share=sum(found) / total)
        for operator, found in by_operator.items()
    ]
    graph_nodes = [
        GraphNodeCost(name=name, operator=operator, output=output, ms=ms, share=ms / total)
        for (name, operator, output), ms in medians.items()
    ]
    return KernelProfile(
        nodes=nodes,
        past=past,
        total_ms=total,
        operators=sorted(operators, key=lambda cost: -cost.ms)[:_LARGEST],
        graph_nodes=sorted(graph_nodes, key=lambda cost: -cost.ms)[:_LARGEST],
    )


def _first_shape(details: Mapping[str, Any]) -> str:
    """The shape of a node's first output, as the profile has it: a list of {type: sizes}."""
    shapes: list[list[int]] = [sizes for output in details.get("output_type_shape", ()) for sizes in output.values()]
    return "x".join(map(str, shapes[0])) if shapes else ""
