"""One graph built, from its ONNX file to an engine file and a report beside it."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from spec_trt.builder.tensorrt.library_log import LibraryLog
from spec_trt.builder.tensorrt.network import check_attention, check_interface, let_decompose, parse_network
from spec_trt.builder.tensorrt.network_report import report_network, save_report
from spec_trt.builder.tensorrt.plan import PlanBuilder
from spec_trt.builder.tensorrt.profiles import Profiles
from spec_trt.builder.tensorrt.settings import TensorRtSettings
from spec_trt.builder.tensorrt.target import Target
from spec_trt.manifest import GraphFacts
from spec_trt.plugins.tree_attention.plugin import tree_attention_plugin
from spec_trt.tensorrt import import_tensorrt

__all__ = ["GraphBuild", "build_graph"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphBuild:
    """What building one graph needs to know; it is handed to another process.

    Attributes:
        backend: `trt` or `trt-rtx`.
        name: The graph's key in the manifest.
        facts: Its interface.
        source: The ONNX file.
        engine: The file to write.
        report: The file to write the report to.
        log: The file that the library's words are appended to.
        profiles: The shapes to build for.
        attention_layers: How many of the op there are.
        settings: Of the build.
        target: The GPUs to build for.
    """

    backend: str
    name: str
    facts: GraphFacts
    source: Path
    engine: Path
    report: Path
    log: Path
    profiles: Profiles
    attention_layers: int
    settings: TensorRtSettings
    target: Target


def build_graph(job: GraphBuild, log: LibraryLog, begin: Callable[[str], object]) -> None:
    """Parse, check, compile and save.

    Args:
        job: What to build.
        log: Takes what the library says.
        begin: Told of each step as it begins.

    Raises:
        BuildError: The library refuses the graph, or it is not what the manifest says.
    """
    library, attention = import_tensorrt(job.backend), job.settings.attention
    begin("parse")
    with ExitStack() as plugin:
        if attention == "plugin":
            plugin.enter_context(plugin.enter_context(tree_attention_plugin(library)).receiving())
        parsed = parse_network(job.source, log)
        check_interface(job.name, parsed.network, job.facts)
        check_attention(library, job.name, parsed.network, attention=attention, layers=job.attention_layers)
        let_decompose(library, parsed.network)
        plan = PlanBuilder(library, job.settings, job.target).compile(job.name, parsed, job.profiles, log, begin)
        begin("save")
        job.engine.write_bytes(plan)
        save_report(report_network(library, parsed.network, job.engine.stat().st_size), job.report)
