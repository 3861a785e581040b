"""An engine's draft heads, opened."""

from collections.abc import Callable

from spec_trt import names
from spec_trt.manifest import EagleFacts, Manifest, ModelFacts
from spec_trt.runtime.draft_model import DraftModel
from spec_trt.runtime.drafters.heads import Heads
from spec_trt.runtime.medusa_model import MedusaModel
from spec_trt.runtime.session import Session

__all__ = ["load_heads"]

OpenGraph = Callable[[str], Session]


def load_heads(manifest: Manifest, open_graph: OpenGraph) -> Heads:
    """Open the heads that a manifest names.

    Args:
        manifest: Of the engine.
        open_graph: Opens the graph of a manifest's key.
    """
    model, medusa, eagle = manifest.model, manifest.heads.medusa, manifest.heads.eagle
    return Heads(
        medusa=None if medusa is None else MedusaModel(open_graph(names.MEDUSA), medusa, model),
        eagle=None if eagle is None else _eagle(eagle, model, open_graph),
    )


def _eagle(facts: EagleFacts, model: ModelFacts, open_graph: OpenGraph) -> DraftModel:
    fuse = open_graph(names.EAGLE_FUSE) if facts.feature_layers else None
    return DraftModel(open_graph(names.EAGLE), facts, model, fuse=fuse)
