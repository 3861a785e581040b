"""Trace a PyTorch graph into ONNX, with names that a reader can follow."""

import ast
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir.passes.common import ClearMetadataAndDocStringPass, CommonSubexpressionEliminationPass

from spec_trt.errors import ExportError
from spec_trt.export.architecture import Architecture
from spec_trt.export.base_graph import BaseGraph
from spec_trt.export.function_body import OPSET, tree_attention_function
from spec_trt.export.named_graph import NamedGraph
from spec_trt.export.quiet import quiet

__all__ = ["trace", "trace_base"]


def trace(
    graph: NamedGraph,
    example: tuple[Any, ...],
    dynamic: tuple[Any, ...],
    *,
    title: str,
    function: ir.Function | None = None,
) -> ir.Model:
    """Trace a graph. Most of its weights stay PyTorch's own memory until they are saved.

    Args:
        graph: The module, its attention (if it has one) written as `symbolic`.
        example: Inputs to trace with.
        dynamic: The names of their dimensions that are free, beside `example`.
        title: What messages call it.
        function: The attention op's body, where the graph has the op.

    Raises:
        ExportError: torch.export or the conversion to ONNX failed.
    """
    try:
        with quiet(), torch.no_grad():
            program: Any = torch.onnx.export(
                graph,
                example,
                dynamo=True,
                opset_version=OPSET,
                dynamic_shapes=dynamic,
                input_names=graph.input_names,
                output_names=graph.output_names,
                verbose=False,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        reason = (str(error.__cause__ or error).splitlines() or [type(error).__name__])[0]
        raise ExportError(f"{title} could not be traced into ONNX: {reason}") from error
    model: ir.Model = program.model
    if function is not None:
        model.functions[function.identifier()] = function
    _tidy(model)
    return model


def trace_base(graph: BaseGraph, architecture: Architecture) -> ir.Model:
    """Trace the base graph; errors as for `trace`.

    Args:
        graph: The model, its attention written as `symbolic`.
        architecture: Its dimensions.
    """
    return trace(
        graph,
        _example(architecture, graph.model.dtype),
        _dynamic(architecture.layers),
        title=graph.model.config.model_type,
        function=tree_attention_function(softcap=architecture.softcap, windowed=architecture.windowed),
    )


def _example(architecture: Architecture, dtype: torch.dtype) -> tuple[Any, ...]:
    """Inputs to trace with: every dimension its own size, none of them 0 or 1, all contiguous."""
    batch, nodes, window, rows, past = 2, 3, 5, 4, 7
    buffer = (batch, architecture.kv_heads, past, architecture.head_dim)
    return (
        torch.zeros(batch, nodes, dtype=torch.long),
        torch.zeros(batch, nodes, dtype=torch.long),
        torch.zeros(batch, dtype=torch.long),
        torch.ones(batch, nodes, window, dtype=torch.bool),
        torch.zeros(batch, rows, dtype=torch.long),
        [torch.zeros(buffer, dtype=dtype) for _ in range(2 * architecture.layers)],
    )


def _dynamic(layers: int) -> tuple[Any, ...]:
    """The dimensions' names, beside `_example`."""
    nodes = {0: "batch", 1: "nodes"}
    mask = {0: "batch", 1: "nodes", 2: "window"}
    return (
        nodes,
        nodes,
        {0: "batch"},
        mask,
        {0: "batch", 1: "rows"},
        [{0: "batch", 2: "past"}] * (2 * layers),
    )


def _tidy(model: ir.Model) -> None:
    """Compute nothing twice, name weights and nodes after their modules, and drop what tracing noted."""
    for node in list(model.graph):
        _normalize_in_one_type(node)
    CommonSubexpressionEliminationPass()(model)
    scopes = {node: _scope(node) for node in model.graph}
    for node, scope in scopes.items():
        _name_transposed_weight(model.graph, node, scope)
    for index, (node, scope) in enumerate(scopes.items()):
        node.name = f"{scope or 'model'}/{node.op_type}_{index}"
    taken = {value.name for node in model.graph for value in node.outputs}
    for weight in list(model.graph.initializers.values()):
        short = str(weight.name).removeprefix("model.")
        weight.name = weight.name if short in taken else short
    ClearMetadataAndDocStringPass()(model)


def _normalize_in_one_type(node: ir.Node) -> None:
    """Cast the input of an RMSNormalization to its output's type.

    Families with a float32 norm scale come out of the converter with a half-precision input beside
    it, which ONNX allows in words, but not in its own type inference.
    """
    value = node.inputs[0] if node.op_type == "RMSNormalization" else None
    dtype = node.outputs[0].dtype
    if value is None or dtype is None or value.dtype == dtype:
        return
    cast = ir.node("Cast", [value], {"to": dtype}, metadata_props=dict(node.metadata_props))
    cast.outputs[0].dtype, cast.outputs[0].shape = dtype, value.shape
    cast.outputs[0].name = f"{value.name}_{dtype.name.lower()}"
    node.prepend(cast)
    node.replace_input_with(0, cast.outputs[0])


def _scope(node: ir.Node) -> str:
    """The path of the module that a node came from, such as `model.layers.0.self_attn.q_proj`."""
    scopes: list[str] = ast.literal_eval(node.metadata_props.get("pkg.torch.onnx.name_scopes", "[]"))
    path = scopes[-2] if len(scopes) > 1 else ""
    return path.removeprefix("model").removeprefix(".")


def _name_transposed_weight(graph: ir.Graph, node: ir.Node, scope: str) -> None:
    """A Linear's weight lost its name where its transpose was computed ahead."""
    if node.op_type not in ("MatMul", "Gemm") or not scope:
        return
    weight, name = node.inputs[1], f"model.{scope}.weight_t"
    unnamed = weight is not None and weight.is_initializer() and str(weight.name).startswith("val_")
    if weight is not None and unnamed and name not in graph.initializers:
        weight.name = name
