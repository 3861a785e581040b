"""The shapes that an engine is built for: a profile for decode passes, and one for prefill.

A GPU's buffers are fixed: the cache has `max_length` rows in every pass, and the mask as many columns as the largest
pass of its profile, so that only the number of nodes changes from pass to pass.
"""

from dataclasses import dataclass

from spec_trt import names
from spec_trt.builder.tensorrt.settings import TensorRtSettings
from spec_trt.errors import BuildError
from spec_trt.manifest import GraphFacts, TensorFacts

__all__ = ["Profiles", "Range", "graph_profiles"]

Profiles = dict[str, dict[str, list[list[int]]]]
"""Per profile, per input: the smallest, the optimal and the largest shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The sizes of one dimension."""

    smallest: int
    optimal: int
    largest: int


def graph_profiles(name: str, graph: GraphFacts, settings: TensorRtSettings) -> Profiles:
    """The profiles of one graph, for exactly the inputs and dimensions that its manifest has.

    Args:
        name: Its key in the manifest.
        graph: Its interface.
        settings: Of the build.

    Raises:
        BuildError: It has a dimension that no profile knows.
    """
    return {
        profile: {tensor.name: _shapes(name, tensor, _ranges(name, profile, settings)) for tensor in graph.inputs}
        for profile in names.PROFILES
    }


def _shapes(graph: str, tensor: TensorFacts, ranges: dict[str, Range]) -> list[list[int]]:
    unknown = [dim for dim in tensor.shape if isinstance(dim, str) and dim not in ranges]
    if unknown:
        raise BuildError(
            f"input {tensor.name} of the graph {graph!r} has a dimension {unknown[0]!r}, "
            f"expected one of {', '.join(ranges)}: export the bundle again"
        )
    sizes = [Range(smallest=dim, optimal=dim, largest=dim) if isinstance(dim, int) else ranges[dim]
             for dim in tensor.shape]  # fmt: skip
    return [
        [size.smallest for size in sizes],
        [size.optimal for size in sizes],
        [size.largest for size in sizes],
    ]


def _ranges(graph: str, profile: str, settings: TensorRtSettings) -> dict[str, Range]:
    """Every dimension's sizes in a profile."""
    decode = profile == names.DECODE
    largest = settings.max_nodes if decode else settings.prefill_chunk
    nodes = Range(smallest=1, optimal=settings.opt_nodes if decode else largest, largest=largest)
    # A draft's level sees the earlier ones, which lie behind the committed rows of its cache: as many as a tree has.
    earlier = settings.max_nodes if graph == names.EAGLE else 0
    return {
        "batch": Range(smallest=1, optimal=settings.opt_batch if decode else 1, largest=settings.max_batch),
        "nodes": nodes,
        "window": _fixed(largest + (earlier if decode else 0)),
        "rows": _rows(graph, nodes, decode=decode),
        "past": _fixed(_rounded(settings.max_length + earlier)),
    }


def _rows(graph: str, nodes: Range, *, decode: bool) -> Range:
    """How many of a pass's nodes are projected: all of a tree's, none of a prompt's but perhaps the last."""
    if graph == names.BASE:
        return nodes if decode else Range(smallest=0, optimal=1, largest=1)
    return Range(smallest=1, optimal=1, largest=nodes.largest) if decode else nodes


def _rounded(rows: int) -> int:
    """Rows of a cache, so many that every sequence's begin at a multiple of the 256 bytes that TensorRT asks for.

    A row of any head has 16 bytes at the least: eight numbers of half precision.
    """
    return -(-rows // 16) * 16


def _fixed(size: int) -> Range:
    return Range(smallest=size, optimal=size, largest=size)
