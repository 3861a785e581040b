"""The wide tree that is tried before a narrower one is chosen."""

from collections.abc import Sequence

from spec_trt.heads.static_tree import best_static_tree
from spec_trt.tune.attempt import RankPath

__all__ = ["wide_tree"]

_FIRST_SHARE = 0.6
_FALL = 1.5
"""About how often a head's first candidate is right, and the power of the rank by which later ones are less often."""


def wide_tree(default: Sequence[Sequence[int]], *, ranks: int, depth: int, nodes: int) -> list[RankPath]:
    """What heads in general accept most of, and the default tree; no sibling in front of a node is missing.

    Args:
        default: Paths of the head's own tree.
        ranks: Candidates that the head gives.
        depth: Levels.
        nodes: Nodes below the root, unless the default tree alone has more.

    Returns:
        Paths of ranks, sorted by length, then path.
    """
    kept = _with_siblings(default)
    shares = [_FIRST_SHARE / (rank + 1) ** _FALL for rank in range(ranks)]
    general = best_static_tree([shares] * depth, max(1, nodes - len(kept)))
    return sorted(kept | _with_siblings(general), key=lambda path: (len(path), path))


def _with_siblings(paths: Sequence[Sequence[int]]) -> set[RankPath]:
    """Every path, and those that differ from its beginnings by a smaller last rank."""
    return {(*path[:level], rank) for path in paths for level in range(len(path)) for rank in range(path[level] + 1)}
