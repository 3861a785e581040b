"""TensorRT's own messages, kept for the error that they explain."""

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

from spec_trt.errors import BackendError

__all__ = ["Complaints", "error_log", "last_error", "one_line"]


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


def one_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return " ".join(str(error).split()) or type(error).__name__


class Complaints:
    """Why the library refused something: its plugin's own error where there is one, or else the newest message.

    Args:
        library: `tensorrt` or `tensorrt_rtx`.
        plugin_failure: Gives what the plugin has raised since it was last asked; the library tells nothing of that.
    """

    def __init__(self, library: ModuleType, plugin_failure: Callable[[], Exception | None] | None = None) -> None:
        self.log = error_log(library)
        self._library, self._plugin_failure = library.__name__, plugin_failure

    def require(self, accepted: bool, what: str) -> None:
        """Raise where something was not accepted, or the plugin failed at it unnoticed.

        Raises:
            BackendError: With the reason.
        """
        failure = self._plugin_failure() if self._plugin_failure is not None else None
        if failure is not None:
            last_error(self.log)  # which says no more than that it failed
            raise BackendError(f"the plugin failed in {what}: {one_line(failure)}") from failure
        if not accepted:
            raise BackendError(f"{self._library} refuses {what}: {last_error(self.log)}")
