"""An engine's draft heads, opened."""

from spec_trt import names
from spec_trt.manifest import EagleFacts, Manifest, ModelFacts
from spec_trt.runtime.backend import Backend
from spec_trt.runtime.draft_model import DraftModel
from spec_trt.runtime.drafters.heads import Heads
from spec_trt.runtime.medusa_model import MedusaModel

__all__ = ["load_heads"]


def load_heads(manifest: Manifest, backend: Backend) -> Heads:
    """Open the heads that a manifest names.

    Args:
        manifest: Of the engine.
        backend: What runs its graphs.
    """
    model, medusa, eagle = manifest.model, manifest.heads.medusa, manifest.heads.eagle
    return Heads(
        medusa=None if medusa is None else MedusaModel(backend.open(names.MEDUSA), medusa, model),
        eagle=None if eagle is None else _eagle(eagle, model, backend),
    )


def _eagle(facts: EagleFacts, model: ModelFacts, backend: Backend) -> DraftModel:
    fuse = backend.open(names.EAGLE_FUSE) if facts.feature_layers else None
    fixed = backend.fixed_shapes(names.EAGLE)
    return DraftModel(backend.open(names.EAGLE), facts, model, fuse=fuse, fixed=fixed)
