"""Static trees: which of a head's candidates are drafted, the same at every step."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spec_trt.errors import ConfigError
from spec_trt.runtime.allowance import Size, sizes_up_to
from spec_trt.runtime.drafters.options import check_integer, check_text

__all__ = ["Level", "StaticTree", "StaticTreeOptions", "read_tree"]

RankPath = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticTreeOptions:
    """Options of a method that drafts a static tree.

    Raises:
        ConfigError: A value is out of range.
    """

    tree: str = field(
        default="",
        metadata={"help": "JSON file with the tree, a list of paths of ranks such as [[0], [0, 1]]; empty: the head's"},
    )
    nodes: int = field(default=0, metadata={"help": "take so many paths of the tree, the first ones; 0: all"})

    def __post_init__(self) -> None:
        check_text("tree", self.tree)
        check_integer("nodes", self.nodes, at_least=0)

    def chosen(self, default: Sequence[Sequence[int]], *, ranks: int, depth: int | None = None) -> "StaticTree":
        """The tree to draft.

        Args:
            default: The head's own.
            ranks: Candidates that the head gives.
            depth: Levels that it can draft; any number when None.

        Raises:
            ConfigError: There is no such tree, or the head can't fill it.
        """
        tree = read_tree(self.tree) if self.tree else StaticTree(paths=default, source="the head")
        tree.check(ranks=ranks, depth=depth)
        return tree.first(self.nodes) if self.nodes else tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level of a tree, its nodes in the order of their paths.

    Attributes:
        parents: Of each node, its parent's index in the level above; above the first is the root alone.
        rows: [nodes] int64: its parent's place among the level above's `inner` nodes.
        ranks: [nodes] int64: which of its parent's candidates it is.
        inner: The nodes that have children.
        places: Of each node, its place among the tree's paths.
    """

    parents: list[int]
    rows: NDArray[np.int64]
    ranks: NDArray[np.int64]
    inner: list[int]
    places: list[int]


@dataclass(frozen=True, kw_only=True)
class StaticTree:
    """A tree of paths of ranks: (0, 2) is the third candidate behind the first one (Cai et al. 2024, section 2.1.2).

    Attributes:
        paths: One per node below the root; a path's prefixes come before it.
        source: Where it comes from, for messages.

    Raises:
        ConfigError: The paths do not make a tree.
    """

    paths: Sequence[Sequence[int]]
    source: str

    def __post_init__(self) -> None:
        seen: set[RankPath] = {()}
        for path in map(tuple, self.paths):
            if path in seen or path[:-1] not in seen:
                raise ConfigError(
                    f"the tree from {self.source} must list every path once, behind the paths that it extends: "
                    f"found {list(path)} out of place; mend it"
                )
            seen.add(path)

    @property
    def depth(self) -> int:
        """Depth of the deepest node."""
        return max(map(len, self.paths), default=0)

    def check(self, *, ranks: int, depth: int | None = None) -> None:
        """Refuse a tree that a head can't fill.

        Args:
            ranks: Candidates that the head gives.
            depth: Levels that it can draft; any number when None.

        Raises:
            ConfigError: It can't.
        """
        highest = max((rank for path in self.paths for rank in path), default=0)
        if highest >= ranks:
            raise ConfigError(
                f"the tree from {self.source} has rank {highest}, the head gives ranks below {ranks}: take it out"
            )
        if depth is not None and self.depth > depth:
            raise ConfigError(
                f"the tree from {self.source} is {self.depth} levels deep, the heads draft {depth}: cut it there"
            )

    def first(self, nodes: int) -> "StaticTree":
        """The tree of the first so many paths, the same one every time."""
        if nodes >= len(self.paths):
            return self
        if nodes not in self._beginnings:
            self._beginnings[nodes] = StaticTree(paths=self.paths[:nodes], source=self.source)
        return self._beginnings[nodes]

    @cached_property
    def _beginnings(self) -> "dict[int, StaticTree]":
        return {}

    def sizes(self) -> list[Size]:
        """The sizes of tree worth choosing among: a level of a draft model's costs it a run, but for the first."""
        trees = {nodes: self.first(nodes) for nodes in sizes_up_to(len(self.paths))}
        return [Size(nodes=nodes, levels=max(0, tree.depth - 1)) for nodes, tree in trees.items()]

    @cached_property
    def levels(self) -> list[Level]:
        """The levels from depth 1 on."""
        by_depth: list[list[RankPath]] = [[()]]
        by_depth += [sorted(tuple(path) for path in self.paths if len(path) == depth) for depth in self._depths]
        extended = {tuple(path[:-1]) for path in self.paths}
        places = {tuple(path): place for place, path in enumerate(self.paths)}
        inner = [[index for index, path in enumerate(level) if path in extended] for level in by_depth]
        levels = []
        for depth in self._depths:
            above = {path: index for index, path in enumerate(by_depth[depth - 1])}
            parents = [above[path[:-1]] for path in by_depth[depth]]
            levels.append(
                Level(
                    parents=parents,
                    rows=np.array([inner[depth - 1].index(parent) for parent in parents], dtype=np.int64),
                    ranks=np.array([path[-1] for path in by_depth[depth]], dtype=np.int64),
                    inner=inner[depth],
                    places=[places[path] for path in by_depth[depth]],
                )
            )
        return levels

    @property
    def _depths(self) -> range:
        return range(1, self.depth + 1)


def read_tree(file: str) -> StaticTree:
    """A tree from a JSON file: a list of lists of ranks.

    Raises:
        ConfigError: The file can't be read, or holds something else.
    """
    try:
        paths = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"can't read the tree in {file} ({error}): expected a JSON list of lists of ranks") from error
    if not isinstance(paths, list) or not all(_is_rank_path(path) for path in paths):
        raise ConfigError(f"{file} must hold a JSON list of lists of ranks (integers from 0 on), such as [[0], [0, 1]]")
    return StaticTree(paths=paths, source=file)


def _is_rank_path(path: object) -> bool:
    return isinstance(path, list) and all(type(rank) is int and rank >= 0 for rank in path)
