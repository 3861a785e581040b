"""EAGLE: a draft model over the target's features grows a tree, level by level."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from spec_trt.runtime.accept import emitted_tokens
from spec_trt.runtime.drafters.static_tree import StaticTreeOptions
from spec_trt.runtime.tree import ROOT, Tree, TreeBuilder

if TYPE_CHECKING:
    from spec_trt.runtime.draft_model import DraftModel, DraftStep
    from spec_trt.runtime.drafters.drafter import PassOutput

__all__ = ["EagleDrafter", "Grower", "StaticGrower"]


class Grower(Protocol):
    """What decides the tree that the draft model grows."""

    logits: bool
    """Whether it reads the draft's logits, of all its tokens."""

    def grow(self, builder: TreeBuilder, step: "DraftStep", max_depth: int) -> None:
        """Draft below the root.

        Args:
            builder: The tree, its root alone.
            step: What the draft predicts behind the root.
            max_depth: Depth of the deepest node allowed, at least 1.
        """


class EagleDrafter:
    """EAGLE (Li et al. 2024, arXiv 2401.15077), EAGLE-2 (arXiv 2406.16858) and EAGLE-3 (arXiv 2503.01840).

    After every pass the draft model runs the accepted tokens again, on the target's own features, so that its cache
    has a row for each of the target's.

    Args:
        model: The draft model; nothing of it is touched before `start`.
        grower: What decides the tree.
    """

    def __init__(self, model: "DraftModel", grower: Grower) -> None:
        self.needs = frozenset(model.needs)
        self._model, self._grower = model, grower
        self._root = 0
        self._step: DraftStep | None = None

    def start(self, prompt: Sequence[int], out: "PassOutput | None") -> None:
        """Begin a sequence; one of a single token has no feature to draft from yet. See `Drafter.start`."""
        count, self._root = len(prompt) - 1, prompt[-1]
        read = 0 if out is None else len(out.tensors[self._model.needs[0]])
        self._model.reset(count, keep=count - read)
        self._step = None if out is None else self._extend(out, range(read), prompt[-read:])

    def propose(self, max_depth: int) -> Tree:
        """The root and what the draft model predicts behind it."""
        builder = TreeBuilder(self._root)
        if self._step is not None and max_depth > 0:
            self._grower.grow(builder, self._step, max_depth)
        return builder.build()

    def observe(self, tree: Tree, out: "PassOutput", path: Sequence[int], extra: int) -> None:
        """Give the draft its true rows: the features of the accepted nodes, each with the token after it."""
        self._root = extra
        self._step = self._extend(out, path, emitted_tokens(tree, path, extra))

    def _extend(self, out: "PassOutput", nodes: Sequence[int], tokens: Sequence[int]) -> "DraftStep":
        return self._model.extend(out.tensors, nodes, tokens, logits=self._grower.logits)


class StaticGrower:
    """A static tree, as in EAGLE.

    Args:
        options: The method's options.
        model: The draft model.
        eos_ids: Tokens after which nothing is drafted.
    """

    logits = False

    def __init__(self, options: StaticTreeOptions, *, model: "DraftModel", eos_ids: frozenset[int]) -> None:
        self._model, self._eos_ids = model, eos_ids
        self._tree = options.chosen(model.facts.tree, ranks=model.facts.top_k)

    def grow(self, builder: TreeBuilder, step: "DraftStep", max_depth: int) -> None:
        """Fill the tree's levels; see `Grower.grow`.

        The draft runs a level's inner nodes even where one ends the sequence: so its passes have few sizes.
        """
        levels, nodes = self._tree.levels[:max_depth], [ROOT]
        for number, level in enumerate(levels, start=1):
            tokens = step.token_ids[level.rows, level.ranks].tolist()
            nodes = level.add_to(builder, nodes, tokens, self._eos_ids)
            if number < len(levels):
                step = self._model.expand(step, level.rows[level.inner], [tokens[index] for index in level.inner])
