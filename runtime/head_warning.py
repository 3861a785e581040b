"""A word to the user whose draft head does nothing: it costs time, and no output shows it."""

from spec_trt.runtime.drafters import METHODS
from spec_trt.runtime.stats import Stats

__all__ = ["head_warning"]

_ENOUGH_DRAFTS = 32


def head_warning(method: str, stats: Stats) -> str | None:
    """What is wrong with a method's head, if none of its tokens was accepted over a run.

    Args:
        method: The method's name.
        stats: Of the run; one of a few drafts says nothing.
    """
    drafted, accepted = stats.nodes - stats.passes, stats.emitted - stats.passes
    if METHODS[method].head is None or drafted < _ENOUGH_DRAFTS or accepted:
        return None
    return (
        f"warning: {method} drafted {drafted} tokens in {stats.passes} passes and none was accepted: "
        "its head was most likely trained for another model"
    )
