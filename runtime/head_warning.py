"""A word to the user whose draft head does nothing: it costs time, and no output shows it."""

from spec_trt.runtime.drafters import METHODS
from spec_trt.runtime.stats import Stats

__all__ = ["head_warning"]

_ENOUGH_PASSES = 16


def head_warning(method: str, stats: Stats) -> str | None:
    """What is wrong with a method's head, if none of its tokens was accepted over a run.

    Args:
        method: The method's name.
        stats: Of the run; one of a few passes says nothing.
    """
    drafted, accepted = stats.nodes - stats.passes, stats.emitted - stats.passes
    if METHODS[method].head is None or stats.passes < _ENOUGH_PASSES or not drafted or accepted:
        return None
    return (
        f"warning: {method} drafted {drafted} tokens in {stats.passes} passes and none was accepted: "
        "its head was most likely trained for another model"
    )
