"""The static trees of heads whose checkpoint names none: small ones, for processors that compute is dear on."""

from spec_trt.heads.static_tree import best_static_tree

__all__ = ["default_eagle_tree", "default_medusa_tree"]

# How often a candidate is right, guessed: the best one of the first level, how much less at each further level and
# at each further rank. A Medusa head sees ever less of what it skips; EAGLE drafts token after token.
_MEDUSA = {"first": 0.5, "per_level": 0.65, "per_rank": 0.35}
_EAGLE = {"first": 0.6, "per_level": 0.9, "per_rank": 0.3}
_EAGLE_LEVELS = 4
_MEDUSA_NODES, _EAGLE_NODES = 12, 10


def default_medusa_tree(heads: int, top_k: int) -> list[list[int]]:
    """A tree of about a dozen nodes for so many heads, as paths of ranks below `top_k`."""
    return best_static_tree(_accuracies(heads, top_k, **_MEDUSA), _MEDUSA_NODES)


def default_eagle_tree(top_k: int) -> list[list[int]]:
    """A tree of about ten nodes, four levels deep, as paths of ranks below `top_k`."""
    return best_static_tree(_accuracies(_EAGLE_LEVELS, top_k, **_EAGLE), _EAGLE_NODES)


def _accuracies(levels: int, ranks: int, *, first: float, per_level: float, per_rank: float) -> list[list[float]]:
    """Per level, per rank, how often that candidate is right."""
    return [[first * per_level**level * per_rank**rank for rank in range(ranks)] for level in range(levels)]
