"""TensorRT's own messages, kept for the error that they explain."""

from functools import cache
from types import ModuleType
from typing import Any

__all__ = ["error_log", "last_error"]


@cache
def error_log(library: ModuleType) -> Any:  # noqa: ANN401 - an `ILogger` of the library, which has no types
    """The library's logger in this process, which keeps errors and drops what is less.

    There is one, which lives to the end: the library goes on using the first that it is given, whatever comes later.

    Args:
        library: `tensorrt` or `tensorrt_rtx`.
    """
    severe = (library.ILogger.ERROR, library.ILogger.INTERNAL_ERROR)

    class ErrorLog(library.ILogger):  # type: ignore[misc, name-defined]  # made here: the base is the library's
        """Keeps the newest error."""

        def __init__(self) -> None:
            library.ILogger.__init__(self)
            self.newest = ""

        def log(self, severity: Any, text: str) -> None:  # noqa: ANN401 - the library's own enumeration
            """Take one message."""
            if severity in severe:
                self.newest = text

    return ErrorLog()


def last_error(log: Any) -> str:  # noqa: ANN401 - what `error_log` gave
    """The newest error in one line, told once."""
    newest, log.newest = log.newest, ""
    return " ".join(str(newest).split()) or "the library gave no reason"
