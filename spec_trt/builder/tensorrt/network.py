"""A graph of the bundle as the library's parser reads it, checked against what the manifest says of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from spec_trt import names
from spec_trt.builder.tensorrt.library_log import LibraryLog
from spec_trt.errors import BuildError
from spec_trt.manifest import GraphFacts, TensorFacts

__all__ = ["ParsedNetwork", "check_attention", "check_interface", "layers_of", "let_decompose", "parse_network"]

# As the library names types, and as manifests do.
_DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "INT64": "int64",
    "INT32": "int32",
    "BOOL": "bool",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedNetwork:
    """What the parser made: Polygraphy's loaders hand these three on together, and the parser owns the weights."""

    builder: Any
    network: Any
    parser: Any


def parse_network(path: Path, log: LibraryLog) -> ParsedNetwork:
    """Read an ONNX file.

    Args:
        path: The file.
        log: Takes what the parser says.

    Raises:
        BuildError: It refuses the file.
    """
    from polygraphy.backend.trt import network_from_onnx_path
    from polygraphy.exception import PolygraphyException

    try:
        builder, network, parser = network_from_onnx_path(str(path))
    except PolygraphyException as error:
        raise BuildError(f"the library can't read {path.name}: {log.reason}") from error
    return ParsedNetwork(builder=builder, network=network, parser=parser)


def layers_of(network: Any) -> Iterator[Any]:  # noqa: ANN401 - the library has no types
    """Every layer of a network."""
    return (network.get_layer(index) for index in range(network.num_layers))


def check_interface(name: str, network: Any, graph: GraphFacts) -> None:  # noqa: ANN401 - the library has no types
    """Compare a network's inputs and outputs with the manifest's: the runtime binds by the latter.

    Raises:
        BuildError: A name, a type or a shape differs.
    """
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    outputs = [network.get_output(index) for index in range(network.num_outputs)]
    for side, found, expected in (("input", inputs, graph.inputs), ("output", outputs, graph.outputs)):
        has = {tensor.name: (_dtype(tensor), tuple(tensor.shape)) for tensor in found}
        for facts in expected:
            wanted = (facts.dtype, _shape(facts))
            if has.pop(facts.name, None) != wanted:
                raise BuildError(
                    f"the graph {name!r} has no {side} {facts.name} of {facts.dtype} {facts.shape} as its manifest "
                    "says: export the bundle again"
                )
        if has:
            raise BuildError(
                f"the graph {name!r} has the {side} {min(has)}, which its manifest does not name: export again"
            )


def _dtype(tensor: Any) -> str:  # noqa: ANN401 - the library has no types
    name: str = tensor.dtype.name
    return _DTYPES.get(name, name)


def _shape(facts: TensorFacts) -> tuple[int, ...]:
    return tuple(dim if isinstance(dim, int) else -1 for dim in facts.shape)


def check_attention(library: ModuleType, name: str, network: Any, *, attention: str, layers: int) -> None:  # noqa: ANN401 - the library has no types
    """Make sure that the parser took the attention that was asked for, in every layer.

    Args:
        library: `tensorrt` or `tensorrt_rtx`.
        name: The graph's.
        network: The network.
        attention: `plugin` or `native`.
        layers: Of the model.

    Raises:
        BuildError: It did not.
    """
    found = sum(layer.type == library.LayerType.PLUGIN_V3 for layer in layers_of(network))
    expected = layers if attention == "plugin" else 0
    if found != expected:
        raise BuildError(
            f"the graph {name!r} has {found} {names.OP_NAME} plugin layers, expected {expected}: "
            "export the bundle again"
        )


def let_decompose(library: ModuleType, network: Any) -> None:  # noqa: ANN401 - the library has no types
    """Let the library compute attention in several kernels where it has no single one: fp32, uncommon head sizes."""
    for layer in layers_of(network):
        if layer.type == library.LayerType.ATTENTION_INPUT:
            layer.__class__ = library.IAttentionInputLayer  # the binding's way to a layer's own attributes
            layer.attention.decomposable = True
