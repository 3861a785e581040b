"""An engine's draft heads, opened."""

from spec_trt import names
from spec_trt.manifest import Manifest
from spec_trt.runtime.backend import Backend
from spec_trt.runtime.draft_model import DraftModel
from spec_trt.runtime.drafters.heads import Heads
from spec_trt.runtime.medusa_model import MedusaModel

__all__ = ["HeadLoader"]


class HeadLoader:
    """Opens the heads' graphs once, and makes as many `Heads` of them as sequences are to run at once.

    Args:
        manifest: Of the engine.
        backend: What runs its graphs.
    """

    def __init__(self, manifest: Manifest, backend: Backend) -> None:
        self._model, self._heads = manifest.model, manifest.heads
        self._fixed = backend.fixed_shapes(names.EAGLE) if self._heads.eagle else None
        self._sessions = {graph: backend.open(graph) for graph in self._graphs()}

    def __call__(self) -> Heads:
        """The heads, with caches of their own."""
        medusa, eagle, sessions = self._heads.medusa, self._heads.eagle, self._sessions
        return Heads(
            medusa=None if medusa is None else MedusaModel(sessions[names.MEDUSA], medusa, self._model),
            eagle=None
            if eagle is None
            else DraftModel(
                sessions[names.EAGLE], eagle, self._model, fuse=sessions.get(names.EAGLE_FUSE), fixed=self._fixed
            ),
        )

    def _graphs(self) -> list[str]:
        medusa, eagle = self._heads.medusa, self._heads.eagle
        return [
            *([names.MEDUSA] if medusa else []),
            *([names.EAGLE] if eagle else []),
            *([names.EAGLE_FUSE] if eagle and eagle.feature_layers else []),
        ]
