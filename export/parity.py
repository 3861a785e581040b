"""The parity check: an exported graph in ONNX Runtime against the model in PyTorch.

Both run in float32 on the weights of the export's own data type, so that rounding between
operators, which a random cache amplifies without limit, can't hide a wrong graph. PyTorch runs all
passes first: the caller may free the model before ONNX Runtime opens the graph.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from torch import Tensor

from spec_trt import names
from spec_trt.errors import ExportError
from spec_trt.export.architecture import Architecture
from spec_trt.export.attention import ATTENTION_NAME
from spec_trt.export.base_graph import BaseGraph
from spec_trt.export.config import Dtype
from spec_trt.export.trees import PassInputs, PassShape, draw_pass, pass_shapes
from spec_trt.float32 import raise_to_float32

__all__ = [
    "BOUNDS",
    "Parity",
    "ReferencePass",
    "check_parity",
    "compare_outputs",
    "reference_passes",
    "worst",
]

# The largest allowed difference, as a part of the largest value in the tensor (or of 1, if that is
# more). Half-precision graphs may hold constants that were rounded once, such as an embedding scale.
BOUNDS: dict[Dtype, float] = {"fp32": 1e-3, "fp16": 2e-3, "bf16": 1e-2}

_CHOSEN = (names.ARGMAX, names.TOKEN_IDS)
_REPORT = "the graph is wrong; please report the model"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferencePass:
    """One pass as PyTorch ran it.

    Attributes:
        feeds: The inputs, as ONNX Runtime takes them.
        outputs: What PyTorch made of them.
        scores: [..., vocab]: what chose the ids among the outputs; None where there are no ids.
    """

    feeds: dict[str, NDArray[np.generic]]
    outputs: dict[str, Tensor]
    scores: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """The outcome of a check that passed.

    Attributes:
        largest: The largest difference, relative as `BOUNDS` has it.
        output: The output it was found in.
        bound: What was allowed.
        passes: How many passes were compared.
    """

    largest: float
    output: str
    bound: float
    passes: int


def reference_passes(graph: BaseGraph, architecture: Architecture) -> list[ReferencePass]:
    """Run random tree passes in PyTorch, after making sure that trees leave the model what it is.

    Args:
        graph: The model, the op computed by `torch_reference.reference`. It is raised to float32.
        architecture: Its dimensions.

    Raises:
        ExportError: The model with plain attention computes something else.
    """
    graph.float()
    difference = _compare_attention(graph, architecture)
    _refuse_above(BOUNDS["fp32"], {"the logits of a tree pass": difference})
    drawn = [
        draw_pass(shape, architecture, seed) for seed, shape in enumerate(pass_shapes(architecture.sliding_window))
    ]
    return [_run_torch(graph, inputs) for inputs in drawn]


def check_parity(file: Path, dtype: Dtype, passes: Sequence[ReferencePass]) -> Parity:
    """Run the same passes in ONNX Runtime, and compare every output.

    Args:
        file: The exported graph.
        dtype: The export's data type; it sets the bound.
        passes: What PyTorch made of them.

    Raises:
        ExportError: An output differs by more than the bound, or a chosen id where no near tie excuses it.
    """
    bound = BOUNDS[dtype]
    session = _session(file, half=dtype != "fp32")
    found: dict[str, float] = {}
    for item in passes:
        outputs = session.run(list(item.outputs), item.feeds)
        given = {name: torch.from_numpy(output) for name, output in zip(item.outputs, outputs, strict=True)}
        for name, difference in compare_outputs(item.outputs, given, bound, item.scores).items():
            found[name] = max(found.get(name, 0.0), difference)
    output = max(found, key=lambda name: found[name])
    return Parity(largest=found[output], output=output, bound=bound, passes=len(passes))


def worst(found: Mapping[str, Parity]) -> Parity:
    """Several graphs' outcomes as one; the output is named with its graph where there is more than one.

    Args:
        found: The outcome of every graph, by its key.
    """
    key = max(found, key=lambda key: found[key].largest)
    output = found[key].output if len(found) == 1 else f"{found[key].output} of {key}"
    return replace(found[key], output=output, passes=sum(parity.passes for parity in found.values()))


def compare_outputs(
    expected: Mapping[str, Tensor], given: Mapping[str, Tensor], bound: float, scores: Tensor | None = None
) -> dict[str, float]:
    """The relative difference of every output.

    Args:
        expected: What PyTorch gave.
        given: What the exported graph gave.
        bound: The largest allowed difference.
        scores: [..., vocab]: what PyTorch chose the ids among its outputs by.

    Raises:
        ExportError: Two outputs differ in shape or by more than the bound, or two chosen ids by more
            than a near tie.
    """
    for name in expected:
        if expected[name].shape != given[name].shape:
            raise ExportError(
                f"{name} has the shape {tuple(given[name].shape)} in the exported graph, "
                f"{tuple(expected[name].shape)} in PyTorch: {_REPORT}"
            )
    found = {name: _difference(expected[name], given[name]) for name in expected if name not in _CHOSEN}
    _refuse_above(bound, found)
    if scores is not None and names.ARGMAX in given:
        _compare_chosen(names.ARGMAX, scores, given[names.ARGMAX][..., None], bound)
    if scores is not None and names.TOKEN_IDS in given:
        _compare_chosen(names.TOKEN_IDS, scores, given[names.TOKEN_IDS], bound)
    return found


def _difference(expected: Tensor, given: Tensor) -> float:
    if not expected.numel():
        return 0.0
    return float((expected - given).abs().max() / max(1.0, float(expected.abs().max())))


def _refuse_above(bound: float, found: Mapping[str, float]) -> None:
    for name, difference in found.items():
        if not difference <= bound:  # written so that not-a-number is refused too
            raise ExportError(
                f"{name} differs from PyTorch by {difference:.3g} of its largest value, "
                f"allowed are {bound:g}: {_REPORT}"
            )


def _compare_chosen(name: str, scores: Tensor, chosen: Tensor, bound: float) -> None:
    """Ids [..., k], best first, may differ only where their scores are within twice the bound of the k best."""
    if not chosen.numel():
        return
    best = scores.topk(chosen.shape[-1]).values
    behind = float((best - scores.gather(-1, chosen)).abs().max())
    allowed = 2 * bound * max(1.0, float(scores[scores.isfinite()].abs().max()))
    if not behind <= allowed:
        raise ExportError(
            f"the exported graph's {name} is {behind:.3g} away from PyTorch's best score, "
            f"allowed are {allowed:.3g}: {_REPORT}"
        )


def _compare_attention(graph: BaseGraph, architecture: Architecture) -> float:
    """Compare a chain in the tree pass with the model's own forward, attention as its family has it."""
    shape = PassShape(past_lens=(0,), past=0, nodes=12, rows=0, chain=True)
    inputs = draw_pass(shape, architecture, seed=0)
    rows = torch.arange(shape.nodes)[None]
    with torch.no_grad():
        tree = graph(*inputs.tensors()[:4], rows, inputs.past)[0]
        graph.model.set_attn_implementation("eager")
        try:
            plain = graph.model(input_ids=inputs.input_ids, use_cache=False).logits
        finally:
            graph.model.set_attn_implementation(ATTENTION_NAME)
    return _difference(plain, tree)


def _run_torch(graph: BaseGraph, inputs: PassInputs) -> ReferencePass:
    with torch.no_grad():
        outputs = dict(zip(graph.output_names, graph(*inputs.tensors()), strict=True))
    return ReferencePass(feeds=inputs.feeds(), outputs=outputs, scores=outputs[names.LOGITS])


def _session(file: Path, *, half: bool) -> Any:  # noqa: ANN401 - onnxruntime has no types
    """Open the graph as it is, in as little memory as ONNX Runtime can."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.log_severity_level = 3
    if not half:
        return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    with tempfile.TemporaryDirectory(dir=file.parent) as directory:
        raised = Path(directory) / file.name
        model = ir.load(file)
        raise_to_float32(model)
        ir.save(model, raised, external_data=f"{file.name}.data")
        return onnxruntime.InferenceSession(raised, options, providers=["CPUExecutionProvider"])
