"""The static tree that a head's checkpoint may name: paths of ranks, every node's path one."""

from typing import Any

from spec_trt.names import TOP_K

__all__ = ["checkpoint_tree"]

_KEYS = ("tree", "medusa_choices")


def checkpoint_tree(config: dict[str, Any], levels: int | None = None) -> tuple[list[list[int]] | None, list[str]]:
    """The tree of a checkpoint's config, sorted by length and then path.

    Args:
        config: Of the checkpoint; "tree", or "medusa_choices" as others call it.
        levels: How deep it may be.

    Returns:
        The tree, or None, and then a note where one was found that can't be used.
    """
    value = next((config[key] for key in _KEYS if config.get(key) is not None), None)
    if value is None:
        return None, []
    if not _is_tree(value) or (levels is not None and max(map(len, value)) > levels):
        return None, [f"ignored its tree: expected paths of ranks below {TOP_K} with every prefix among them"]
    return sorted(map(list, value), key=lambda path: (len(path), path)), []


def _is_tree(value: Any) -> bool:  # noqa: ANN401 - whatever the JSON file held
    if not isinstance(value, list) or not value or not all(isinstance(path, list) and path for path in value):
        return False
    if not all(type(rank) is int and 0 <= rank < TOP_K for path in value for rank in path):
        return False
    paths = {tuple(path) for path in value}
    return len(paths) == len(value) and all(len(path) == 1 or path[:-1] in paths for path in paths)
