"""Medusa: heads on the target's last hidden state fill a static tree."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from spec_trt import names
from spec_trt.runtime.drafters.static_tree import StaticTreeOptions
from spec_trt.runtime.tree import ROOT, Tree, TreeBuilder

if TYPE_CHECKING:
    from spec_trt.runtime.drafters.drafter import PassOutput
    from spec_trt.runtime.medusa_model import MedusaModel

__all__ = ["MedusaDrafter"]


class MedusaDrafter:
    """Medusa (Cai et al. 2024, arXiv 2401.10774, sections 2.1.1 and 2.1.2).

    Head h drafts the nodes of depth h + 1, the same candidates behind every parent.

    Args:
        options: The method's options.
        model: The heads.
        eos_ids: Tokens after which nothing is drafted.
    """

    needs: frozenset[str] = frozenset({names.HIDDEN_STATES})

    def __init__(self, options: StaticTreeOptions, *, model: "MedusaModel", eos_ids: frozenset[int]) -> None:
        self._model, self._eos_ids = model, eos_ids
        self._tree = options.chosen(model.facts.tree, ranks=model.facts.top_k, depth=model.facts.heads)
        self._root = 0
        self._candidates: NDArray[np.int64] | None = None

    def start(self, prompt: Sequence[int], out: "PassOutput | None") -> None:
        """Begin a sequence; one of a single token has no hidden state to draft from yet. See `Drafter.start`."""
        self._root = prompt[-1]
        self._candidates = None if out is None else self._model.draft(out.tensors[names.HIDDEN_STATES][-1])

    def propose(self, max_depth: int) -> Tree:
        """The static tree, filled."""
        builder = TreeBuilder(self._root)
        if self._candidates is not None:
            nodes = [ROOT]
            for level, candidates in zip(self._tree.levels[:max_depth], self._candidates, strict=False):
                nodes = level.add_to(builder, nodes, candidates[level.ranks].tolist(), self._eos_ids)
        return builder.build()

    def observe(self, tree: Tree, out: "PassOutput", path: Sequence[int], extra: int) -> None:
        """Draft behind the last accepted node."""
        self._root = extra
        self._candidates = self._model.draft(out.tensors[names.HIDDEN_STATES][path[-1]])
