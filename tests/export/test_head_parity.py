"""The parity check finds a head's graph that is wrong."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch

from spec_trt import names
from spec_trt.errors import ExportError
from spec_trt.export.head_graphs import plan_heads
from spec_trt.export.heads import LoadedHeads
from spec_trt.export.parity import ReferencePass, check_parity
from spec_trt.heads.eagle_checkpoint import load_eagle
from spec_trt.heads.medusa_checkpoint import load_medusa
from tests.export.head_sessions import ARCHITECTURE
from tests.heads.checkpoints import make_target, write_medusa_v1, write_speculators

Damage = Callable[[ir.Model], None]


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the graphs of Medusa heads and of an EAGLE-3 draft."""
    root = tmp_path_factory.mktemp("graphs")
    for plan in _plans(root):
        ir.save(plan.trace(), root / f"{plan.key}.onnx")
    return root


@pytest.fixture(scope="module")
def passes(graphs: Path) -> dict[str, list[ReferencePass]]:
    return {plan.key: plan.passes() for plan in _plans(graphs)}


def _plans(root: Path):
    if not (root / "medusa").exists():
        write_medusa_v1(root / "medusa")
        write_speculators(root / "eagle", norm_before_fc=True)
    heads = LoadedHeads(
        medusa=load_medusa(root / "medusa", make_target()), eagle=load_eagle(root / "eagle", make_target())
    )
    return list(plan_heads(heads, ARCHITECTURE, torch.float32))


def change(model: ir.Model, name: str) -> None:
    weight = model.graph.initializers[name]
    assert weight.const_value is not None
    weight.const_value = ir.tensor(weight.const_value.numpy() * np.float32(1.05), name=name)


def node_of(model: ir.Model, op_type: str) -> ir.Node:
    return next(node for node in model.graph if node.op_type == op_type)


def swap_candidates(model: ir.Model) -> None:
    ids = model.graph.initializers["candidates.draft_ids"]
    assert ids.const_value is not None
    ids.const_value = ir.tensor(ids.const_value.numpy()[::-1].copy(), name=ids.name)


def take_rows_for_ids(model: ir.Model) -> None:
    gather = next(node for node in model.graph if node.op_type == "Gather" and "candidates" in str(node.name))
    ids = gather.inputs[0]
    assert ids is not None
    assert ids.const_value is not None
    ids.const_value = ir.tensor(torch.arange(len(ids.const_value.numpy()))[:, None].numpy(), name=ids.name)


def smallest_first(model: ir.Model) -> None:
    node_of(model, "TopK").attributes["largest"] = ir.AttrInt64("largest", 0)


def change_scale(model: ir.Model) -> None:
    attributes = node_of(model, names.OP_NAME).attributes
    attributes["scale"] = ir.AttrFloat32("scale", attributes["scale"].as_float() * 1.05)


def swap_cache(model: ir.Model) -> None:
    node = node_of(model, names.OP_NAME)
    key, value = node.inputs[3:5]
    node.replace_input_with(3, value)
    node.replace_input_with(4, key)


DAMAGES: dict[str, tuple[str, Damage]] = {
    "one head's weight": ("medusa", lambda model: change(model, "heads.2.0.linear.weight_t")),
    "one head's projection": ("medusa", lambda model: change(model, "projections.1.weight_t")),
    "the smallest first": ("medusa", smallest_first),
    "another id": ("eagle", swap_candidates),
    "rows for ids": ("eagle", take_rows_for_ids),
    "another scale": ("eagle", change_scale),
    "keys for values": ("eagle", swap_cache),
    "another frequency": ("eagle", lambda model: change(model, "rotary.inv_freq")),
    "another norm": ("eagle_fuse", lambda model: change(model, "input_norm.weight")),
}


def test_undamaged_graphs_pass(graphs: Path, passes: dict[str, list[ReferencePass]]):
    found = {key: check_parity(graphs / f"{key}.onnx", "fp32", passes[key]) for key in passes}
    assert {key: parity.passes for key, parity in found.items()} == {"medusa": 2, "eagle": 5, "eagle_fuse": 2}
    assert max(parity.largest for parity in found.values()) < 1e-5


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_graph_is_refused(name: str, graphs: Path, passes: dict[str, list[ReferencePass]], tmp_path: Path):
    key, damage = DAMAGES[name]
    model = ir.load(graphs / f"{key}.onnx")
    damage(model)
    ir.save(model, tmp_path / "damaged.onnx")
    with pytest.raises(ExportError, match="please report the model"):
        check_parity(tmp_path / "damaged.onnx", "fp32", passes[key])
