"""The tree that emits most tokens per millisecond, found exactly."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from spec_trt.errors import ConfigError
from spec_trt.tune.attempt import RankPath
from spec_trt.tune.tree_cost import TreeCost

__all__ = ["best_tree", "tokens_per_ms"]


def best_tree(reach: Mapping[RankPath, float], cost: TreeCost, *, nodes: int) -> list[RankPath]:
    """Choose among all trees of at most so many nodes and of any depth.

    A tree T of n nodes and d levels emits 1 + sum of reach(v) over v in T tokens per pass, which costs

        c(T) = fixed + level (d - 1) + node |inner nodes of T| + verify(n) ms.

    The ratio of the two is what counts (Chen et al. 2024, Sequoia, arXiv 2402.12374, section 3.1, where the tree of a
    size and its depth are likewise found by dynamic programming, then those by what they cost). It is maximized by
    Dinkelbach's method (Management Science 13, 1967): at a rate, the tree with the largest

        surplus(T) = tokens(T) - rate c(T)

    is found, its own ratio is the next rate, until the rate rises no more, and no tree's ratio is above it. A surplus
    is a sum over nodes but for what depends on n and d alone. So with F(v, n, d), the most that n nodes of the
    subtree at v can add, v among them and none deeper than d, and inner = rate * node where n > 1, otherwise 0,

        F(v, n, d) = reach(v) - inner + max { sum of F(c, n_c, d) over children c of v : sum of n_c = n - 1 },
        F(v, 0, d) = 0,

    and the best surplus is the largest, over n and d, of 1 + the same maximum over the root's children with n nodes
    among them - rate (fixed + level (d - 1) + verify(n)). Every n is looked at, every d, and every split of n.

    Args:
        reach: By path, parents included; no child's is above its parent's.
        cost: Of trees up to this size.
        nodes: Below the root, at the most.

    Returns:
        Paths of ranks, those that are accepted most often first: the first of them are a good smaller tree.

    Raises:
        ConfigError: There is nothing to choose from.
    """
    if nodes < 1 or not reach:
        raise ConfigError("a tree needs at least one node to choose from")
    forest, rate, best = _Forest.of(reach), 0.0, list[RankPath]()
    while True:
        tree = forest.best_at(rate, cost, min(nodes, len(reach)))
        found = tokens_per_ms(tree, reach, cost)
        if best and found <= rate:
            return sorted(best, key=lambda path: (-reach[path], len(path), path))
        rate, best = found, tree


def tokens_per_ms(tree: list[RankPath], reach: Mapping[RankPath, float], cost: TreeCost) -> float:
    """What a tree is expected to emit in a millisecond."""
    return (1 + sum(reach[path] for path in tree)) / cost.pass_ms(tree)


Chosen = tuple[RankPath, "Chosen", "Chosen"] | tuple["Chosen", "Chosen"] | None
"""Nodes of a tree, shared with those that others of its kind were made of."""

Table = list[tuple[float, Chosen]]
"""By number of nodes: the most that they can add, and which they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Forest:
    """The nodes to choose from."""

    reach: Mapping[RankPath, float]
    children: Mapping[RankPath, list[RankPath]]
    depth: int

    @classmethod
    def of(cls, reach: Mapping[RankPath, float]) -> "_Forest":
        """Link nodes to their children."""
        children: dict[RankPath, list[RankPath]] = {path: [] for path in [(), *reach]}
        for path in reach:
            children[path[:-1]].append(path)
        return cls(reach=reach, children=children, depth=max(map(len, reach)))

    def best_at(self, rate: float, cost: TreeCost, nodes: int) -> list[RankPath]:
        """The tree of the largest surplus."""
        best, most = None, -math.inf
        for depth in range(1, self.depth + 1):
            table = self._below((), depth, rate * cost.node_ms, nodes)
            for count in range(1, len(table)):
                gain, chosen = table[count]
                surplus = gain - rate * (cost.level_ms * (depth - 1) + cost.verify_ms[count])
                if surplus > most:
                    best, most = chosen, surplus
        return _paths(best)

    def _below(self, path: RankPath, depth: int, inner: float, nodes: int) -> Table:
        """What nodes below a node, not deeper than so many levels, add at the most."""
        table: Table = [(0.0, None)]
        if len(path) < depth:
            for child in self.children[path]:
                table = _merged(table, self._with(child, depth, inner, nodes), nodes)
        return table

    def _with(self, path: RankPath, depth: int, inner: float, nodes: int) -> Table:
        """The same of a node and those below it."""
        weight, table = self.reach[path], self._below(path, depth, inner, nodes - 1)
        with_node: Table = [
            (gain + weight - (inner if count else 0.0), (path, chosen, None))
            for count, (gain, chosen) in enumerate(table)
        ]
        return [(0.0, None), *with_node]


def _merged(one: Table, other: Table, nodes: int) -> Table:
    """The best of both together, for every number of nodes and every split of it."""
    merged: Table = [(-math.inf, None)] * min(nodes + 1, len(one) + len(other) - 1)
    for count, (gain, chosen) in enumerate(one):
        for more, (added, further) in enumerate(other[: len(merged) - count]):
            if gain + added > merged[count + more][0]:
                merged[count + more] = (gain + added, (chosen, further))
    return merged


def _paths(chosen: Chosen) -> list[RankPath]:
    """The nodes, parents first."""
    paths, waiting = list[RankPath](), [chosen]
    while waiting:
        part = waiting.pop()
        if part is None:
            continue
        if len(part) == 3:
            paths.append(part[0])
        waiting += part[-2:]
    return sorted(paths, key=len)
