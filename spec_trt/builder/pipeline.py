"""The order of the rewrites, per precision."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import CommonSubexpressionEliminationPass

from spec_trt import names
from spec_trt.builder.passes.argmax_blocks import ArgMaxBlocks
from spec_trt.builder.passes.fold_embedding import FoldEmbedding
from spec_trt.builder.passes.fold_transposes import FoldTransposes, UntransposeSharedWeights
from spec_trt.builder.passes.fuse_norms import FuseNorms
from spec_trt.builder.passes.fuse_silu import FuseSilu
from spec_trt.builder.passes.gather_rows import GatherRows
from spec_trt.builder.passes.lower_attention import LowerAttention
from spec_trt.builder.passes.merge_heads import MergeHeads
from spec_trt.builder.passes.merge_matmuls import MergeMatMuls
from spec_trt.builder.passes.pack_rotary import PackRotary
from spec_trt.builder.passes.quantize_inputs import QuantizeInputs
from spec_trt.builder.passes.quantize_int4 import QuantizeInt4
from spec_trt.builder.passes.quantize_int8 import QuantizeInt8
from spec_trt.builder.passes.quantize_tables import QuantizeTables
from spec_trt.builder.passes.reshape_targets import ReshapeTargets
from spec_trt.builder.passes.rotate_head import RotateHead
from spec_trt.builder.passes.smooth_activations import Alphas, SmoothActivations
from spec_trt.builder.passes.split_gemms import SplitGemms
from spec_trt.builder.passes.split_heads import SplitHeads
from spec_trt.builder.splice import MS_DOMAIN
from spec_trt.errors import BuildError

__all__ = [
    "apply_passes",
    "head_options",
    "lean_passes",
    "lower",
    "options",
    "quantizing_head_passes",
    "quantizing_passes",
]

# Found by perplexity; for int4, where activations keep most of their precision, smaller ones are best.
_INT8_ALPHAS = Alphas(norm=0.75, product=0.6, head=None)
_INT4_ALPHAS = Alphas(norm=0.5, product=0.3, head=0.3)
_HEAD_BLOCK = 32


def options(precision: str) -> dict[str, Any]:
    """The settings of a precision, as an engine's manifest records them."""
    if precision == "int8":
        return {"smoothing": asdict(_INT8_ALPHAS)}
    if precision == "int4":
        return {"smoothing": asdict(_INT4_ALPHAS), "block": 32, "accuracy_level": 4}
    return {}


def head_options(precision: str) -> dict[str, Any]:
    """The settings of a draft head's graph of this precision."""
    return {"precision": "fp32"} if precision == "fp32" else {"precision": "int8", "block": _HEAD_BLOCK}


def lean_passes() -> list[ir.passes.PassBase]:
    """What every precision begins with: fewer and larger kernels that compute the same.

    `TreeAttention` stays whole, so that what follows can still look through it.
    """
    return [
        SplitGemms(),
        CommonSubexpressionEliminationPass(),
        UntransposeSharedWeights(),
        FoldTransposes(),
        MergeMatMuls(),
        FoldEmbedding(),
        SplitHeads(),
        PackRotary(),
        FuseNorms(),
        FuseSilu(),
        MergeHeads(),
        GatherRows(),
        ArgMaxBlocks(),
        ReshapeTargets(),
    ]


def quantizing_passes(precision: str, absmax: dict[str, np.ndarray]) -> list[ir.passes.PassBase]:
    """What a precision adds at the end; `absmax` as `measure_absmax` found it."""
    if precision == "int8":
        return [SmoothActivations(absmax, _INT8_ALPHAS), RotateHead(), QuantizeInt8()]
    if precision == "int4":
        return [SmoothActivations(absmax, _INT4_ALPHAS), QuantizeInt4()]
    return []


def quantizing_head_passes(name: str, precision: str) -> list[ir.passes.PassBase]:
    """What a head's precision adds at the end of its graph, by the graph's name.

    Whatever the base computes in: a level of a draft has several nodes, which integer matmuls take at the price of
    one, and what rounding changes is how often a draft is right.
    """
    if precision == "fp32":
        return []
    first = QuantizeInputs(_HEAD_BLOCK) if name == names.EAGLE_FUSE else QuantizeTables(_HEAD_BLOCK)
    return [first, RotateHead(), QuantizeInt8()]


def lower(model: ir.Model) -> None:
    """Make a graph that ONNX Runtime can run: no `TreeAttention` and none of its function."""
    apply_passes(model, [LowerAttention(), CommonSubexpressionEliminationPass()])
    for identifier in [key for key in model.functions if key[0] == names.OP_DOMAIN]:
        del model.functions[identifier]
    model.graph.opset_imports.pop(names.OP_DOMAIN, None)
    model.graph.opset_imports[MS_DOMAIN] = 1


def apply_passes(model: ir.Model, passes: Sequence[ir.passes.PassBase]) -> None:
    """Apply passes in order.

    Raises:
        BuildError: A pass finds the graph in a state it can't work on; names the pass.
    """
    for graph_pass in passes:
        try:
            graph_pass(model)
        except ir.passes.InvariantError as error:
            cause = error.__cause__ or error
            raise BuildError(f"{type(graph_pass).__name__} can't be applied: {cause}") from error
