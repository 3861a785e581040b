"""The static tree that suits what was measured of a head."""

from collections.abc import Sequence

from spec_trt.heads.static_tree import best_static_tree

__all__ = ["measured_tree"]

_FEWEST_ROWS = 500
"""Of each level: a rank that is right once in a hundred times is then seen to be about five times."""


def measured_tree(
    rank_accuracy: Sequence[Sequence[float]], rows: Sequence[float], *, levels: int, nodes: int
) -> list[list[int]] | None:
    """Choose by accuracies that fall from rank to rank, as those of a head do that is measured long enough.

    Args:
        rank_accuracy: Per level from 1, per rank from 0.
        rows: On how many rows each level was measured.
        levels: How deep the tree may be; those that were not measured count as the last one that was.
        nodes: Nodes below the root, at the most.

    Returns:
        Paths of ranks; None where so few rows would fit the tree to chance.
    """
    if min(rows) < _FEWEST_ROWS:
        return None
    falling = [sorted(ranks, reverse=True) for ranks in rank_accuracy]
    return best_static_tree(falling + falling[-1:] * (levels - len(falling)), nodes)
