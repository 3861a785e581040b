"""The token tree: what every drafter proposes and every verify pass runs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from spec_trt.errors import ConfigError

__all__ = ["ROOT", "Topology", "Tree", "TreeBuilder", "root_alone", "topology_of"]

ROOT = 0

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


class Topology:
    """What a tree's parents alone decide. Trees of one shape share it: see `topology_of`.

    Attributes:
        parents: [nodes] int64; `parents[i] < i`, the root's is -1.
        depths: [nodes] int64: distance from the root; position id = root's position + depth.
        children: For each node, its children.

    Raises:
        ConfigError: There is no such tree.
    """

    def __init__(self, parents: Sequence[int]) -> None:
        if not parents or parents[0] != -1 or any(not 0 <= parent < node for node, parent in _below_root(parents)):
            raise ConfigError(f"a parent must come before its node, the root's is -1: found {list(parents)}")
        depths = [0]
        self.children: list[list[int]] = [[] for _ in parents]
        for node, parent in _below_root(parents):
            depths.append(depths[parent] + 1)
            self.children[parent].append(node)
        self.parents, self.depths = _constant(parents), _constant(depths)

    @cached_property
    def inner(self) -> int:
        """Nodes below the root that have children."""
        return sum(map(bool, self.children[1:]))

    @cached_property
    def depth(self) -> int:
        """Of the deepest node."""
        return int(self.depths.max())

    @cached_property
    def mask(self) -> BoolArray:
        """[nodes, nodes] bool: row i is true at i and at its ancestors."""
        mask = np.eye(len(self.parents), dtype=np.bool_)
        for node, parent in _below_root(self.parents.tolist()):
            mask[node, :node] = mask[parent, :node]
        mask.flags.writeable = False
        return mask


@lru_cache(maxsize=256)
def topology_of(parents: tuple[int, ...]) -> Topology:
    """The topology of some parents: most methods draft the same few shapes over and over."""
    return Topology(parents)


def _below_root(parents: Sequence[int]) -> "enumerate[int]":
    return enumerate(parents[1:], start=1)


def _constant(numbers: Sequence[int]) -> IntArray:
    array = np.array(numbers, dtype=np.int64)
    array.flags.writeable = False
    return array


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A token tree in topological order. Node 0 is the root: the newest token, not yet run.

    Attributes:
        tokens: [nodes] int64; siblings have distinct ones.
        topology: How they hang together.
        draft_probs: Where drafts were drawn, by their parent: the distribution that its first child was drawn from,
            [vocab]; the further ones from the same without the tokens of those before. Siblings are in draw order.
        places: Of a node, its place from 0 on in the order of what the drafter expects of its nodes; those that are
            missing are in their own order.
        chances: Of a node, how likely the drafter finds it to be accepted, its parents too; empty where it has no idea.

    Raises:
        ConfigError: There are not as many tokens as nodes, or siblings are equal.
    """

    tokens: IntArray
    topology: Topology
    draft_probs: Mapping[int, NDArray[np.float64]] = field(default_factory=dict)
    places: Mapping[int, int] = field(default_factory=dict)
    chances: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.tokens.shape != self.topology.parents.shape:
            raise ConfigError(
                f"a tree needs as many tokens as parents: found shapes {self.tokens.shape} and "
                f"{self.topology.parents.shape}"
            )
        edges = zip(self.topology.parents.tolist(), self.tokens.tolist(), strict=True)
        if len(self) > 2 and len(set(edges)) < len(self):  # two nodes have no siblings
            raise ConfigError("siblings must have distinct tokens: insert drafts through TreeBuilder")

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def parents(self) -> IntArray:
        """See `Topology`."""
        return self.topology.parents

    @property
    def depths(self) -> IntArray:
        """See `Topology`."""
        return self.topology.depths

    @property
    def mask(self) -> BoolArray:
        """See `Topology`."""
        return self.topology.mask

    def place(self, node: int) -> int:
        """Where a node below the root stands in the order of what the drafter expects of its nodes."""
        return self.places.get(node, node - 1)

    def child(self, node: int, token: int) -> int | None:
        """The child of a node that holds a token, if there is one."""
        return next((child for child in self.topology.children[node] if self.tokens[child] == token), None)

    def path(self, node: int) -> list[int]:
        """The nodes from the root to `node`, both included."""
        nodes = [node]
        while nodes[-1] != ROOT:
            nodes.append(int(self.parents[nodes[-1]]))
        return nodes[::-1]


def root_alone(token: int) -> Tree:
    """The tree of plain decoding."""
    return Tree(tokens=np.array([token]), topology=_ROOT_ALONE)


_ROOT_ALONE = topology_of((-1,))


@dataclass
class TreeBuilder:
    """Grows a tree as a trie: an equal sibling is found, not added again.

    Attributes:
        root_token: The root's.
        draft_probs: See `Tree`; filled in by who draws.
        places: See `Tree`; filled in by who knows.
        chances: See `Tree`; filled in by who knows.
    """

    root_token: int
    draft_probs: dict[int, NDArray[np.float64]] = field(init=False, default_factory=dict)
    places: dict[int, int] = field(init=False, default_factory=dict)
    chances: dict[int, float] = field(init=False, default_factory=dict)
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

    def add_chain(self, parent: int, tokens: Sequence[int], scores: Sequence[float] = ()) -> list[int]:
        """The nodes of a chain of tokens below `parent`; their chances too, where the logarithms of these are given."""
        nodes: list[int] = []
        for token in tokens:
            parent = self.add(parent, token)
            nodes.append(parent)
        self.chances |= {node: math.exp(score) for node, score in zip(nodes, scores, strict=False)}
        return nodes

    def build(self) -> Tree:
        """The tree as it stands."""
        return Tree(
            tokens=np.array(self._tokens, dtype=np.int64),
            topology=topology_of(tuple(self._parents)),
            draft_probs=self.draft_probs,
            places=self.places,
            chances=self.chances,
        )
