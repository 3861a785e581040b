"""The graphs of a bundle's heads: how each is traced, what it is compared with, what the manifest says."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import onnx_ir as ir
import torch

from spec_trt import names
from spec_trt.export.architecture import Architecture
from spec_trt.export.attention import symbolic
from spec_trt.export.eagle_graph import EagleFuseGraph, EagleGraph, trace_eagle, trace_eagle_fuse
from spec_trt.export.head_passes import eagle_fuse_passes, eagle_passes, medusa_passes
from spec_trt.export.head_trees import default_eagle_tree, default_medusa_tree
from spec_trt.export.heads import LoadedHeads
from spec_trt.export.medusa_graph import MedusaGraph, trace_medusa
from spec_trt.export.parity import ReferencePass
from spec_trt.export.torch_reference import reference
from spec_trt.heads.eagle_checkpoint import LoadedEagle
from spec_trt.heads.medusa_checkpoint import LoadedMedusa
from spec_trt.manifest import EagleFacts, HeadFacts, MedusaFacts

__all__ = ["GraphPlan", "describe_heads", "plan_heads"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPlan:
    """One graph to write.

    Attributes:
        key: Its name in the manifest.
        trace: Makes it.
        passes: Runs what it will be compared with in PyTorch, its weights raised to float32.
    """

    key: str
    trace: Callable[[], ir.Model]
    passes: Callable[[], list[ReferencePass]]


def plan_heads(heads: LoadedHeads, architecture: Architecture, dtype: torch.dtype) -> Iterator[GraphPlan]:
    """The graphs of all heads.

    Args:
        heads: The heads.
        architecture: Of the target.
        dtype: Of weights, features and cache.
    """
    if heads.medusa is not None:
        graph = MedusaGraph(heads.medusa.heads, heads.medusa.draft_ids).eval()
        yield GraphPlan(key=names.MEDUSA, trace=lambda: trace_medusa(graph, dtype), passes=lambda: medusa_passes(graph))
    if heads.eagle is not None:
        yield from _plan_eagle(heads.eagle, architecture, dtype)


def _plan_eagle(eagle: LoadedEagle, architecture: Architecture, dtype: torch.dtype) -> Iterator[GraphPlan]:
    draft, ids = eagle.draft, eagle.draft_ids
    yield GraphPlan(
        key=names.EAGLE,
        trace=lambda: trace_eagle(EagleGraph(draft, ids, symbolic).eval(), dtype),
        passes=lambda: eagle_passes(EagleGraph(draft, ids, reference).eval(), architecture),
    )
    if draft.config.version == 3:
        fuse = EagleFuseGraph(draft).eval()
        yield GraphPlan(
            key=names.EAGLE_FUSE, trace=lambda: trace_eagle_fuse(fuse, dtype), passes=lambda: eagle_fuse_passes(fuse)
        )


def describe_heads(heads: LoadedHeads) -> HeadFacts:
    """What the manifest says of all heads."""
    return HeadFacts(
        medusa=None if heads.medusa is None else _medusa_facts(heads.medusa),
        eagle=None if heads.eagle is None else _eagle_facts(heads.eagle),
    )


def _medusa_facts(medusa: LoadedMedusa) -> MedusaFacts:
    config = medusa.heads.config
    top_k = min(names.TOP_K, config.draft_vocab)
    return MedusaFacts(
        heads=config.heads,
        layers=config.layers,
        top_k=top_k,
        draft_vocab=config.draft_vocab,
        draft_ids=medusa.draft_ids,
        tree=medusa.tree or default_medusa_tree(config.heads, top_k),
        source=medusa.source,
    )


def _eagle_facts(eagle: LoadedEagle) -> EagleFacts:
    config = eagle.draft.config
    top_k = min(names.TOP_K, config.draft_vocab)
    return EagleFacts(
        version=config.version,
        layers=config.layers,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        hidden=config.hidden,
        feature_layers=list(config.feature_layers),
        top_k=top_k,
        draft_vocab=config.draft_vocab,
        draft_ids=eagle.draft_ids,
        tree=eagle.tree or default_eagle_tree(top_k),
        source=eagle.source,
    )
