"""What a network was made of, kept beside its engine: an engine itself can only be looked into on its own GPU."""

import json
import math
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from spec_trt.builder.tensorrt.network import layers_of
from spec_trt.errors import ManifestError

__all__ = ["NetworkReport", "load_report", "report_file", "report_network", "save_report"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkReport:
    """A network before it was compiled, and the size of what came of it.

    Attributes:
        layers: How many of each kind.
        dtypes: How many layers give each type.
        plugins: How many layers are each plugin's.
        weights_bytes: Of all constants.
        engine_bytes: Of the engine, for all its GPUs.
    """

    layers: dict[str, int]
    dtypes: dict[str, int]
    plugins: dict[str, int]
    weights_bytes: int
    engine_bytes: int


def report_network(library: ModuleType, network: Any, engine_bytes: int) -> NetworkReport:  # noqa: ANN401 - the library has no types
    """Count a network's layers, types, plugins and weights."""
    kinds, dtypes, plugins, weights = Counter[str](), Counter[str](), Counter[str](), 0
    for layer in layers_of(network):
        kinds[layer.type.name] += 1
        if not layer.num_outputs:
            continue
        output = layer.get_output(0)
        dtypes[output.dtype.name] += 1
        if layer.type == library.LayerType.CONSTANT:
            weights += int(math.prod(output.shape) * output.dtype.itemsize)
        if layer.type == library.LayerType.PLUGIN_V3:
            plugins[_plugin_name(library, layer)] += 1
    return NetworkReport(
        layers=dict(kinds.most_common()),
        dtypes=dict(dtypes.most_common()),
        plugins=dict(plugins),
        weights_bytes=weights,
        engine_bytes=engine_bytes,
    )


def _plugin_name(library: ModuleType, layer: Any) -> str:  # noqa: ANN401 - the library has no types
    layer.__class__ = library.IPluginV3Layer  # the binding's way to a layer's own attributes
    core = layer.plugin.get_capability_interface(library.PluginCapabilityType.CORE)
    return str(core.plugin_name)


def report_file(graph: str) -> str:
    """The name of a graph's report in an engine directory."""
    return f"{graph}.network.json"


def save_report(report: NetworkReport, path: Path) -> None:
    """Write a report."""
    path.write_text(json.dumps(asdict(report), indent=2) + "\n", encoding="utf-8")


def load_report(path: Path) -> NetworkReport:
    """Read a report.

    Raises:
        ManifestError: It is damaged.
    """
    try:
        return NetworkReport(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ManifestError(f"{path} is damaged ({error}): build the engine again") from error
