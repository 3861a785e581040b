"""EAGLE's static tree with drafts that are drawn from the draft model's distribution."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from spec_trt.runtime.allowance import Allowance, Size
from spec_trt.runtime.drafters.filled_tree import CLOSED
from spec_trt.runtime.drafters.static_tree import Level, StaticTreeOptions
from spec_trt.runtime.processors import inverse_cdf
from spec_trt.runtime.rejection import without
from spec_trt.runtime.tree import ROOT, TreeBuilder

if TYPE_CHECKING:
    from spec_trt.runtime.draft_model import DraftModel, DraftStep
    from spec_trt.runtime.sampler import Sampler

__all__ = ["SampledGrower"]


@dataclass(frozen=True, slots=True)
class _Drafted:
    """A node of the static tree: its node in the tree, `CLOSED` if nothing may follow, and the tokens down to it."""

    node: int
    path: tuple[int, ...]


class SampledGrower:
    """A static tree whose siblings are drawn one after another, without replacement.

    The tree says how many children a node gets before any is drawn, as losslessness demands; a path's ranks are the
    order of the draws. Where the draft has fewer possible tokens, fewer are drawn. They are drawn from what the
    sequence's own processors make of the draft's logits, the nearest to the target's distribution.

    Args:
        options: The method's options.
        model: The draft model.
        eos_ids: Tokens after which nothing is drafted.
        sampler: The sequence's.
    """

    logits = True

    def __init__(
        self, options: StaticTreeOptions, *, model: "DraftModel", eos_ids: frozenset[int], sampler: "Sampler"
    ) -> None:
        self._model, self._eos_ids, self._sampler = model, eos_ids, sampler
        self._tree = options.chosen(model.facts.tree, ranks=model.facts.top_k)
        ids = range(model.facts.draft_vocab) if model.facts.draft_ids is None else model.facts.draft_ids
        self._ids = np.array(ids, dtype=np.int64)

    def sizes(self) -> Sequence[Size]:
        """Beginnings of the tree: how many of it are drafted is decided before any is drawn."""
        return self._tree.sizes()

    def grow(self, builder: TreeBuilder, step: "DraftStep", max_depth: int, allowance: Allowance) -> None:
        """Fill the tree's levels; see `Grower.grow`."""
        levels, drafted = self._tree.first(allowance.nodes).levels[:max_depth], [_Drafted(ROOT, ())]
        for number, level in enumerate(levels, start=1):
            drafted = self._draw_level(builder, level, drafted, step)
            if number < len(levels):
                tokens = [drafted[index].path[-1] for index in level.inner]
                step = self._model.expand(step, level.rows[level.inner], tokens)

    def _draw_level(
        self, builder: TreeBuilder, level: Level, above: Sequence[_Drafted], step: "DraftStep"
    ) -> list[_Drafted]:
        """Draw and insert the level's nodes; what is behind a closed node, or could not be drawn, is closed too."""
        drafted = []
        for index, siblings in groupby(range(len(level.parents)), key=level.parents.__getitem__):
            parent, places = above[index], list(siblings)
            children = self._draw(builder, parent, step, int(level.rows[places[0]]), len(places))
            for child, place in zip(children, places, strict=False):
                if child.node != CLOSED:
                    builder.places[child.node] = level.places[place]
            missing = len(places) - len(children)
            drafted += children + [_Drafted(CLOSED, (*parent.path, 0))] * missing
        return drafted

    def _draw(self, builder: TreeBuilder, parent: _Drafted, step: "DraftStep", row: int, count: int) -> list[_Drafted]:
        """Draw and insert `count` children of a node, or as many as are possible; none of a closed one.

        A draw's number is its node's, so that none is used twice.
        """
        if parent.node == CLOSED:
            return []
        children: list[_Drafted] = []
        left = self._sampler.probs(step.logits[row], parent.path, self._ids)
        builder.draft_probs[parent.node] = probs = np.zeros(self._sampler.vocab)
        probs[self._ids] = left
        while len(children) < count and left.any():
            place = inverse_cdf(left, self._sampler.uniform("draft", len(builder)))
            token = int(self._ids[place])
            node = builder.add(parent.node, token)
            children.append(_Drafted(CLOSED if token in self._eos_ids else node, (*parent.path, token)))
            left = without(left, place)
        return children
