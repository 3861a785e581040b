"""What `spec-trt inspect` says of a TensorRT engine."""

import json
import math
from pathlib import Path
from typing import Any

from spec_trt import names
from spec_trt.builder.tensorrt.network_report import NetworkReport, load_report, report_file
from spec_trt.errors import ConfigError
from spec_trt.manifest import Manifest, TensorRtFacts
from spec_trt.table import format_table

__all__ = ["describe_tensorrt", "engine_layers"]

_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_KINDS = 4  # of layers to name, the most frequent ones


def describe_tensorrt(path: Path, manifest: Manifest) -> list[str]:
    """The parts of a description: what the engine is for, its networks, its memory and its profiles.

    Args:
        path: The directory.
        manifest: Its manifest; there are no parts where it is not a TensorRT engine's.
    """
    facts = manifest.engine.tensorrt if manifest.engine is not None else None
    if facts is None:
        return []
    reports = {name: load_report(path / report_file(name)) for name in manifest.graphs}
    return [_limits(facts), _networks(reports), _memory(manifest, facts, reports), _profiles(facts)]


def _limits(facts: TensorRtFacts) -> str:
    version = f", version {facts.plugin_version}" if facts.plugin_version is not None else ""
    return "\n".join([
        f"GPUs     compute capability {', '.join(facts.compute_capabilities)}; {facts.attention} attention{version}",
        f"at most  {facts.max_length} tokens, {facts.max_batch} sequences, {facts.max_nodes} nodes, "
        f"prefill in chunks of {facts.prefill_chunk}",
    ])  # fmt: skip


def _networks(reports: dict[str, NetworkReport]) -> str:
    rows = [
        [
            name,
            str(sum(report.layers.values())),
            ", ".join(f"{name} {count}" for name, count in report.plugins.items()) or "none",
            ", ".join(f"{kind.lower()} {count}" for kind, count in list(report.layers.items())[:_KINDS]),
            ", ".join(f"{dtype.lower()} {count}" for dtype, count in report.dtypes.items()),
        ]
        for name, report in reports.items()
    ]
    return "networks before compilation\n" + format_table(
        ["graph", "layers", "plugins", "most frequent", "types of the layers' outputs"], rows
    )


def _memory(manifest: Manifest, facts: TensorRtFacts, reports: dict[str, NetworkReport]) -> str:
    rows = [
        [
            name,
            f"{report.weights_bytes / 1e6:,.1f}",
            f"{report.engine_bytes / 1e6:,.1f}",
            f"{_cache_bytes(manifest, facts, name) / 1e6:,.1f}",
        ]
        for name, report in reports.items()
    ]
    return format_table(["graph", "weights, MB", "engine, MB", "cache, MB"], rows)


def _cache_bytes(manifest: Manifest, facts: TensorRtFacts, graph: str) -> int:
    """Of the buffers that the runtime keeps for every sequence, in bytes."""
    dtypes = {tensor.name: tensor.dtype for tensor in manifest.graphs[graph].inputs}
    return sum(
        math.prod(largest) * _DTYPE_BYTES[dtypes[name]]
        for name, (_, _, largest) in facts.profiles[graph][names.DECODE].items()
        if name.startswith(("past_key.", "past_value."))
    )


def _profiles(facts: TensorRtFacts) -> str:
    rows = [
        [graph, profile, name, *(str(shape) for shape in shapes)]
        for graph, profiles in facts.profiles.items()
        for profile, inputs in profiles.items()
        for name, shapes in inputs.items()
        if not name.rpartition(".")[2].isdigit() or name.endswith(".0")
    ]
    return "profiles; per-layer tensors shown for layer 0\n" + format_table(
        ["graph", "profile", "input", "smallest", "optimal", "largest"], rows
    )


def engine_layers(path: Path, manifest: Manifest) -> dict[str, Any]:
    """What the library's inspector says of every graph's engine.

    Raises:
        ConfigError: It is not a TensorRT engine.
        BackendError: The library is missing, or can't load it on this machine.
    """
    engine = manifest.engine
    if engine is None or engine.tensorrt is None:
        raise ConfigError(f"{path} is no TensorRT engine: --layers shows the layers of one")
    from spec_trt.builder.tensorrt.inspector import inspect_engine

    return {
        name: json.loads(inspect_engine(path / graph.file, engine.backend)) for name, graph in manifest.graphs.items()
    }
