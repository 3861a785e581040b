"""Random passes over draft heads in PyTorch: what their exported graphs are compared with."""

import dataclasses

import torch
from torch import Tensor

from spec_trt import names
from spec_trt.export.architecture import Architecture
from spec_trt.export.candidates import Candidates
from spec_trt.export.eagle_graph import EagleFuseGraph, EagleGraph
from spec_trt.export.medusa_graph import MedusaGraph
from spec_trt.export.parity import ReferencePass
from spec_trt.export.trees import PassInputs, draw_pass, pass_shapes

__all__ = ["eagle_fuse_passes", "eagle_passes", "medusa_passes"]


def medusa_passes(graph: MedusaGraph) -> list[ReferencePass]:
    """Run one row, and many rows of two sequences.

    Args:
        graph: The heads. They are raised to float32.
    """
    graph.float()
    hidden = graph.model.config.hidden
    return [_medusa_pass(graph, states) for states in _draw((1, 1, hidden), (2, 9, hidden))]


def _medusa_pass(graph: MedusaGraph, hidden_states: Tensor) -> ReferencePass:
    with torch.no_grad():
        outputs = dict(zip(graph.output_names, graph(hidden_states), strict=True))
        scores = _scores(graph.candidates, graph.model(hidden_states))
    return ReferencePass(feeds={names.HIDDEN_STATES: hidden_states.numpy()}, outputs=outputs, scores=scores)


def eagle_passes(graph: EagleGraph, architecture: Architecture) -> list[ReferencePass]:
    """Run the same kinds of trees that the base graph is checked with.

    Args:
        graph: The draft model, the op computed by `torch_reference.reference`. It is raised to float32.
        architecture: Of the target.
    """
    graph.float()
    config = graph.model.config
    own = dataclasses.replace(
        architecture, layers=config.layers, kv_heads=config.kv_heads, head_dim=config.head_dim, sliding_window=None
    )
    drawn = [draw_pass(shape, own, seed) for seed, shape in enumerate(pass_shapes(None))]
    features = _draw(*((*inputs.input_ids.shape, config.hidden) for inputs in drawn))
    return [_eagle_pass(graph, *pair) for pair in zip(drawn, features, strict=True)]


def _eagle_pass(graph: EagleGraph, inputs: PassInputs, features: Tensor) -> ReferencePass:
    given = (inputs.input_ids, inputs.position_ids, features, inputs.past_lens, inputs.tree_mask, inputs.past)
    with torch.no_grad():
        outputs = dict(zip(graph.output_names, graph(*given), strict=True))
    feeds = {**inputs.feeds(), names.FEATURES: features.numpy()}
    return ReferencePass(
        feeds={name: feeds[name] for name in graph.input_names},
        outputs=outputs,
        scores=_scores(graph.candidates, outputs[names.DRAFT_LOGITS]),
    )


def eagle_fuse_passes(graph: EagleFuseGraph) -> list[ReferencePass]:
    """Run one node, and several nodes of two sequences.

    Args:
        graph: The fusion. It is raised to float32.
    """
    graph.float()
    width = len(graph.model.config.feature_layers) * graph.model.config.target_hidden
    passes = []
    for features in _draw((1, 1, width), (2, 9, width)):
        with torch.no_grad():
            outputs = dict(zip(graph.output_names, graph(features), strict=True))
        passes.append(ReferencePass(feeds={names.FEATURES: features.numpy()}, outputs=outputs))
    return passes


def _draw(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def _scores(candidates: Candidates, logits: Tensor) -> Tensor:
    """Log-probabilities by the target's ids, [..., vocab]; ids that are not drafted have none."""
    log_probs = logits.log_softmax(dim=-1)
    if candidates.draft_ids is None:
        return log_probs
    ids = candidates.draft_ids[:, 0]
    scores = log_probs.new_full((*log_probs.shape[:-1], int(ids.max()) + 1), float("-inf"))
    scores[..., ids] = log_probs
    return scores
