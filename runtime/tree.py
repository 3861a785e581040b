"""The token tree: what every drafter proposes and every verify pass runs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from spec_trt.errors import ConfigError

__all__ = ["ROOT", "Tree", "TreeBuilder"]

ROOT = 0

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Tree:
    """A token tree in topological order. Node 0 is the root: the newest token, not yet run.

    Attributes:
        tokens: [nodes] int64.
        parents: [nodes] int64; `parents[i] < i`, the root's is -1. Siblings have distinct tokens.

    Raises:
        ConfigError: The arrays do not describe such a tree.
    """

    tokens: IntArray
    parents: IntArray

    def __post_init__(self) -> None:
        if self.tokens.shape != self.parents.shape or self.tokens.ndim != 1 or not len(self.tokens):
            raise ConfigError(
                f"a tree needs as many tokens as parents, at least one of each: "
                f"found shapes {self.tokens.shape} and {self.parents.shape}"
            )
        tokens, parents = self.tokens.tolist(), self.parents.tolist()
        if parents[0] != -1 or any(not 0 <= parent < node for node, parent in enumerate(parents[1:], start=1)):
            raise ConfigError(f"a parent must come before its node, the root's is -1: found {parents}")
        if len(set(zip(parents, tokens, strict=True))) != len(tokens):
            raise ConfigError("siblings must have distinct tokens: insert drafts through TreeBuilder")

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def depths(self) -> IntArray:
        """[nodes] int64: distance from the root; position id = root's position + depth."""
        depths = [0]
        for parent in self.parents[1:].tolist():
            depths.append(depths[parent] + 1)
        return np.array(depths, dtype=np.int64)

    @cached_property
    def mask(self) -> BoolArray:
        """[nodes, nodes] bool: row i is true at i and at its ancestors."""
        mask = np.zeros((len(self), len(self)), dtype=np.bool_)
        for node, parent in enumerate(self.parents.tolist()):
            mask[node, :node] = mask[parent, :node]
            mask[node, node] = True
        return mask

    @cached_property
    def children(self) -> list[dict[int, int]]:
        """For each node, its children by token."""
        children: list[dict[int, int]] = [{} for _ in range(len(self))]
        edges = zip(self.parents.tolist(), self.tokens.tolist(), strict=True)
        for node, (parent, token) in enumerate(edges):
            if node != ROOT:
                children[parent][token] = node
        return children

    def path(self, node: int) -> list[int]:
        """The nodes from the root to `node`, both included."""
        nodes = [node]
        while nodes[-1] != ROOT:
            nodes.append(int(self.parents[nodes[-1]]))
        return nodes[::-1]


@dataclass
class TreeBuilder:
    """Grows a tree as a trie: an equal sibling is found, not added again."""

    root_token: int
    _tokens: list[int] = field(init=False)
    _parents: list[int] = field(init=False)
    _nodes: dict[tuple[int, int], int] = field(init=False)

    def __post_init__(self) -> None:
        self._tokens, self._parents, self._nodes = [self.root_token], [-1], {}

    def __len__(self) -> int:
        return len(self._tokens)

    def add(self, parent: int, token: int) -> int:
        """The child of `parent` that holds `token`, made if there is none."""
        node = self._nodes.setdefault((parent, token), len(self._tokens))
        if node == len(self._tokens):
            self._tokens.append(token)
            self._parents.append(parent)
        return node

    def add_chain(self, parent: int, tokens: Sequence[int]) -> list[int]:
        """The nodes of a chain of tokens below `parent`."""
        nodes: list[int] = []
        for token in tokens:
            parent = self.add(parent, token)
            nodes.append(parent)
        return nodes

    def build(self) -> Tree:
        """The tree as it stands."""
        return Tree(tokens=np.array(self._tokens, dtype=np.int64), parents=np.array(self._parents, dtype=np.int64))
