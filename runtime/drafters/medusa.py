"""Medusa: heads on the target's last hidden state fill a static tree."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spec_trt import names
from spec_trt.runtime.allowance import UNLIMITED, Allowance, Size
from spec_trt.runtime.drafters.filled_tree import FilledTree
from spec_trt.runtime.drafters.static_tree import StaticTreeOptions
from spec_trt.runtime.tree import Tree, TreeBuilder, root_alone

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
        self._root, self._can_draft = 0, False

    def start(self, prompt: Sequence[int], out: "PassOutput | None") -> None:
        """Begin a sequence; one of a single token has no hidden state to draft from yet. See `Drafter.start`."""
        self._root, self._can_draft = prompt[-1], out is not None
        if out is not None:
            self._model.take(out.tensors[names.HIDDEN_STATES], -1)

    def sizes(self) -> Sequence[Size]:
        """Beginnings of the static tree; the heads run once for any."""
        return [Size(nodes=size.nodes) for size in self._tree.sizes()]

    def propose(self, max_depth: int, allowance: Allowance = UNLIMITED) -> Tree:
        """The static tree, or its beginning, filled."""
        if not self._can_draft or max_depth == 0 or allowance.nodes == 0:
            return root_alone(self._root)
        builder, drafted = TreeBuilder(self._root), self._model.draft()
        tree = FilledTree(self._tree, max_depth, allowance, eos_ids=self._eos_ids)
        for level, token_ids, log_probs in zip(tree.levels, drafted.token_ids, drafted.log_probs, strict=False):
            tree.fill(level, token_ids[level.ranks], log_probs[level.ranks])
        tree.insert(builder)
        return builder.build()

    def observe(self, tree: Tree, out: "PassOutput", path: Sequence[int], extra: int) -> None:
        """The next drafts are behind the last accepted node."""
        self._root, self._can_draft = extra, True
        self._model.take(out.tensors[names.HIDDEN_STATES], path[-1], lasting=out.lasting)
