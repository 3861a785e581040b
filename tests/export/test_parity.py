"""The parity check finds a graph that is wrong."""

import shutil
from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest
import torch

from spec_trt import names
from spec_trt.errors import ExportError
from spec_trt.export.attention import Attend, AttentionCall
from spec_trt.export.base_graph import BaseGraph
from spec_trt.export.load import load_model
from spec_trt.export.parity import BOUNDS, ReferencePass, check_parity, compare_outputs, reference_passes
from spec_trt.export.source import locate
from spec_trt.export.torch_reference import reference
from tests.conftest import FamilyPath

Damage = Callable[[ir.Model], None]
FAMILY = "gemma2"  # softcap, and a window in one of two layers


def run_reference(directory: Path, attend: Attend = reference) -> list[ReferencePass]:
    loaded = load_model(locate(str(directory)), "fp32")
    graph = BaseGraph(loaded.model, attend, windowed=loaded.architecture.windowed).eval()
    return reference_passes(graph, loaded.architecture)


@pytest.fixture(scope="module")
def passes(family_model: FamilyPath) -> list[ReferencePass]:
    return run_reference(family_model(FAMILY))


def nodes_of(graph: ir.Graph | ir.Function, op_type: str) -> list[ir.Node]:
    return [node for node in graph if node.op_type == op_type]


def function(model: ir.Model) -> ir.Function:
    return next(iter(model.functions.values()))


def output(model: ir.Model, name: str) -> ir.Node:
    node = next(value for value in model.graph.outputs if value.name == name).producer()
    assert node is not None
    return node


def forget_softcap(model: ir.Model) -> None:
    for node in nodes_of(model.graph, names.OP_NAME):
        node.attributes["softcap"] = ir.AttrFloat32("softcap", 1e4)


def change_scale(model: ir.Model) -> None:
    attributes = nodes_of(model.graph, names.OP_NAME)[1].attributes
    attributes["scale"] = ir.AttrFloat32("scale", attributes["scale"].as_float() * 1.05)


def widen_window(model: ir.Model) -> None:
    nodes_of(model.graph, names.OP_NAME)[0].attributes["sliding_window"] = ir.AttrInt64("sliding_window", 7)


def see_all_rows(model: ir.Model) -> None:
    less = next(node for node in nodes_of(function(model), "Less") if node.outputs[0].name == "committed")
    less.replace_input_with(0, less.inputs[1])
    less.replace_input_with(1, nodes_of(function(model), "Shape")[0].outputs[0])


def hide_tentative_rows(model: ir.Model) -> None:
    less = next(node for node in nodes_of(function(model), "Less") if node.outputs[0].name == "drafted")
    less.replace_input_with(1, less.inputs[0])


def swap_layers(model: ir.Model) -> None:
    first, second = nodes_of(model.graph, names.OP_NAME)
    keys = first.inputs[3], second.inputs[3]
    first.replace_input_with(3, keys[1])
    second.replace_input_with(3, keys[0])


def change_weight(model: ir.Model) -> None:
    weight = model.graph.initializers["model.layers.1.mlp.up_proj.weight_t"]
    assert weight.const_value is not None
    values = weight.const_value.numpy().copy()
    values[0] += 0.05
    weight.const_value = ir.tensor(values, name=weight.name)


def ignore_rows(model: ir.Model) -> None:
    gather = nodes_of(model.graph, "GatherElements")[0]
    zeros = ir.node("Mul", [gather.inputs[1], ir.Value(name="nothing")])
    zero = model.graph.initializers["nothing"] = ir.Value(name="nothing", const_value=ir.tensor([0], name="nothing"))
    zeros.replace_input_with(1, zero)
    zeros.outputs[0].name = "no_rows"
    gather.prepend(zeros)
    gather.replace_input_with(1, zeros.outputs[0])


def second_best(model: ir.Model) -> None:
    argmax = output(model, names.ARGMAX)
    argmax.op_type = "ArgMin"


DAMAGES = {
    damage.__name__: damage
    for damage in (
        forget_softcap,
        change_scale,
        widen_window,
        see_all_rows,
        hide_tentative_rows,
        swap_layers,
        change_weight,
        ignore_rows,
        second_best,
    )
}


def test_an_undamaged_graph_passes(passes: list[ReferencePass], family_bundle: FamilyPath):
    found = check_parity(family_bundle(FAMILY) / "base.onnx", "fp32", passes)
    assert found.largest < 1e-5
    assert (found.bound, found.passes) == (BOUNDS["fp32"], 6)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_graph_is_refused(
    damage: str, passes: list[ReferencePass], family_bundle: FamilyPath, tmp_path: Path
):
    directory = Path(shutil.copytree(family_bundle(FAMILY), tmp_path / "damaged"))
    model = ir.load(directory / "base.onnx")
    DAMAGES[damage](model)
    ir.save(model, directory / "base.onnx", external_data="other.data")
    with pytest.raises(ExportError, match="please report the model"):
        check_parity(directory / "base.onnx", "fp32", passes)


def test_a_model_that_a_tree_pass_changes_is_refused(family_model: FamilyPath):
    def forgetful(call: AttentionCall) -> torch.Tensor:
        return reference(call) * 1.02

    with pytest.raises(ExportError, match="the logits of a tree pass differs from PyTorch"):
        run_reference(family_model("llama"), forgetful)


def outputs(logits: torch.Tensor, argmax: int) -> dict[str, torch.Tensor]:
    return {names.LOGITS: logits, names.ARGMAX: torch.tensor([[argmax]])}


def test_a_near_tie_excuses_another_argmax():
    logits = torch.tensor([[[1.0, 5.0, 4.9995]]])
    compare_outputs(outputs(logits, 1), outputs(logits, 2), bound=1e-3, scores=logits)


def test_an_argmax_without_near_tie_is_refused():
    logits = torch.tensor([[[1.0, 5.0, 4.9]]])
    with pytest.raises(ExportError, match=r"argmax is 0\.1 away from PyTorch's best score, allowed are 0\.01"):
        compare_outputs(outputs(logits, 1), outputs(logits, 2), bound=1e-3, scores=logits)


@pytest.mark.parametrize("chosen", [[3, 1], [1, 3]], ids=["in order", "a near tie"])
def test_candidates_may_change_places_in_a_near_tie(chosen: list[int]):
    scores = torch.tensor([[-9.0, -1.0001, float("-inf"), -1.0]])
    compare_outputs({}, {names.TOKEN_IDS: torch.tensor([chosen])}, bound=1e-3, scores=scores)


@pytest.mark.parametrize("chosen", [[3, 0], [3, 2]], ids=["a worse one", "one that is not drafted"])
def test_other_candidates_are_refused(chosen: list[int]):
    scores = torch.tensor([[-9.0, -1.0001, float("-inf"), -1.0]])
    with pytest.raises(ExportError, match=r"token_ids is (8|inf) away from PyTorch's best score"):
        compare_outputs({}, {names.TOKEN_IDS: torch.tensor([chosen])}, bound=1e-3, scores=scores)


def test_not_a_number_is_refused():
    logits = torch.tensor([[[1.0, 5.0]]])
    with pytest.raises(ExportError, match="logits differs from PyTorch by nan"):
        compare_outputs(outputs(logits, 1), outputs(logits * torch.nan, 1), bound=1e-3)


def test_another_shape_is_refused():
    logits = torch.tensor([[[1.0, 5.0]]])
    with pytest.raises(ExportError, match=r"shape \(1, 1, 1\) in the exported graph, \(1, 1, 2\) in PyTorch"):
        compare_outputs(outputs(logits, 1), outputs(logits[..., :1], 1), bound=1e-3)
