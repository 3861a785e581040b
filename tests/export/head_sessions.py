"""Exported head graphs in ONNX Runtime, run as plainly as can be."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import torch
from torch import Tensor

from spec_trt import names
from spec_trt.export.architecture import Architecture
from spec_trt.export.head_graphs import plan_heads
from spec_trt.export.heads import LoadedHeads

Outputs = dict[str, Tensor]

# Of the target; only random passes would need it.
ARCHITECTURE = Architecture(
    layers=7,
    heads=4,
    kv_heads=2,
    head_dim=8,
    hidden=32,
    vocab=300,
    softcap=False,
    sliding_window=None,
    max_positions=128,
)


def open_graphs(heads: LoadedHeads, directory: Path) -> dict[str, Any]:
    """Trace the heads' graphs alone and open them."""
    sessions = {}
    for plan in plan_heads(heads, ARCHITECTURE, torch.float32):
        file = directory / f"{plan.key}.onnx"
        ir.save(plan.trace(), file)
        sessions[plan.key] = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return sessions


def run(session: Any, feeds: Mapping[str, Tensor]) -> Outputs:
    """Run a graph for all its outputs."""
    outputs = [output.name for output in session.get_outputs()]
    found = session.run(outputs, {name: tensor.numpy() for name, tensor in feeds.items()})
    return {name: torch.from_numpy(value) for name, value in zip(outputs, found, strict=True)}


def run_chain(session: Any, tokens: Tensor, features: Tensor, *, cut: int) -> Outputs:
    """Draft along a chain in two passes, the first one's rows committed for the second; what each node gave.

    Args:
        session: The draft model's graph.
        tokens: [batch, nodes].
        features: [batch, nodes, hidden].
        cut: Nodes of the first pass.
    """
    nodes = tokens.shape[1]
    shape = next(value.shape for value in session.get_inputs() if value.name == names.past_key(0))
    layers = sum(value.name.startswith("past_key.") for value in session.get_inputs())
    buffers = [name(layer) for layer in range(layers) for name in (names.past_key, names.past_value)]
    cache = {name: torch.zeros(len(tokens), shape[1], 0, shape[3]) for name in buffers}
    parts = []
    for start, stop in ((0, cut), (cut, nodes)):
        feeds = {
            names.INPUT_IDS: tokens[:, start:stop].contiguous(),
            names.POSITION_IDS: torch.arange(start, stop).expand(len(tokens), -1).contiguous(),
            names.FEATURES: features[:, start:stop].contiguous(),
            names.PAST_LENS: torch.full((len(tokens),), start),
            names.TREE_MASK: torch.from_numpy(np.tril(np.ones((len(tokens), stop - start, stop - start), np.bool_))),
            **cache,
        }
        parts.append(run(session, feeds))
        for name in buffers:
            cache[name] = torch.cat([cache[name], parts[-1][name.replace("past", "new")]], dim=2)
    return {
        name: torch.cat([part[name] for part in parts], dim=2 if name.startswith("new") else 1) for name in parts[0]
    }
