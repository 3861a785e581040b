"""EAGLE: a draft model over the target's features grows a tree, level by level."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from spec_trt.runtime.accept import emitted_tokens
from spec_trt.runtime.allowance import UNLIMITED, Allowance, Size
from spec_trt.runtime.drafters.filled_tree import FilledTree
from spec_trt.runtime.drafters.static_tree import StaticTreeOptions
from spec_trt.runtime.tree import Tree, TreeBuilder, root_alone

if TYPE_CHECKING:
    from spec_trt.runtime.draft_model import DraftModel, DraftStep
    from spec_trt.runtime.drafters.drafter import PassOutput

__all__ = ["EagleDrafter", "Grower", "StaticGrower"]


class Grower(Protocol):
    """What decides the tree that the draft model grows."""

    logits: bool
    """Whether it reads the draft's logits, of all its tokens."""

    def sizes(self) -> Sequence[Size]:
        """See `Drafter.sizes`."""

    def grow(self, builder: TreeBuilder, step: "DraftStep", max_depth: int, allowance: Allowance) -> None:
        """Draft below the root.

        Args:
            builder: The tree, its root alone.
            step: What the draft predicts behind the root.
            max_depth: Depth of the deepest node allowed, at least 1.
            allowance: What the tree may have, at least one node.
        """


class EagleDrafter:
    """EAGLE (Li et al. 2024, arXiv 2401.15077), EAGLE-2 (arXiv 2406.16858) and EAGLE-3 (arXiv 2503.01840).

    Before it drafts, the draft model runs the tokens accepted since it last did, on the target's own features, so that
    its cache has a row for each of the target's.

    Args:
        model: The draft model; nothing of it is touched before `start`.
        grower: What decides the tree.
    """

    def __init__(self, model: "DraftModel", grower: Grower) -> None:
        self.needs = frozenset(model.needs)
        self._model, self._grower = model, grower
        self._root, self._can_draft = 0, False

    def start(self, prompt: Sequence[int], out: "PassOutput | None") -> None:
        """Begin a sequence; one of a single token has no feature to draft from yet. See `Drafter.start`."""
        count, self._root, self._can_draft = len(prompt) - 1, prompt[-1], out is not None
        read = 0 if out is None else len(out.tensors[self._model.needs[0]])
        self._model.reset(count, keep=count - read)
        if out is not None:
            self._model.take(out.tensors, range(read), prompt[-read:], lasting=out.lasting)
            self._model.extend(logits=self._grower.logits)  # as long as prompts are read; it need not be done again

    def sizes(self) -> Sequence[Size]:
        """The grower's."""
        return self._grower.sizes()

    def propose(self, max_depth: int, allowance: Allowance = UNLIMITED) -> Tree:
        """The root and what the draft model predicts behind it."""
        if not self._can_draft or max_depth == 0 or allowance.nodes == 0:
            return root_alone(self._root)
        builder = TreeBuilder(self._root)
        step = self._model.extend(logits=self._grower.logits)
        self._grower.grow(builder, step, max_depth, allowance)
        return builder.build()

    def observe(self, tree: Tree, out: "PassOutput", path: Sequence[int], extra: int) -> None:
        """Give the draft its true rows: the features of the accepted nodes, each with the token after it."""
        self._root, self._can_draft = extra, True
        self._model.take(out.tensors, path, emitted_tokens(tree, path, extra), lasting=out.lasting)


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

    def sizes(self) -> Sequence[Size]:
        """Beginnings of the tree."""
        return self._tree.sizes()

    def grow(self, builder: TreeBuilder, step: "DraftStep", max_depth: int, allowance: Allowance) -> None:
        """Fill the tree's levels; see `Grower.grow`.

        The draft runs a level's inner nodes even where one ends the sequence: so its passes have few sizes.
        """
        tree = FilledTree(self._tree, max_depth, allowance, eos_ids=self._eos_ids)
        for number, level in enumerate(tree.levels, start=1):
            tokens = step.token_ids[level.rows, level.ranks]
            tree.fill(level, tokens, step.log_probs[level.rows, level.ranks])
            if number == len(tree.levels) or not tree.pays_to_go_on(level):
                break
            step = self._model.expand(step, level.rows[level.inner], tokens[level.inner])
        tree.insert(builder)
