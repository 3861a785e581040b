"""What a build is doing."""

from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

__all__ = ["progress_monitor"]

_DEEPEST = 5  # below are phases by the hundred, of no time at all


def progress_monitor(library: ModuleType, begin: Callable[[str], object]) -> Any:  # noqa: ANN401 - the library has no types
    """What the library reports its progress to: an `IProgressMonitor`.

    Args:
        library: `tensorrt` or `tensorrt_rtx`.
        begin: Told of each phase as it begins.
    """

    class Monitor(library.IProgressMonitor):  # type: ignore[misc, name-defined]  # made here: the base is the library's
        """Passes phases on, but for the deepest."""

        def __init__(self) -> None:
            library.IProgressMonitor.__init__(self)
            self._depths: dict[str | None, int] = {None: 0}

        def phase_start(self, phase: str, parent: str | None, _steps: int) -> None:
            """Begin a phase of another one."""
            self._depths[phase] = self._depths.get(parent, 0) + 1
            if self._depths[phase] <= _DEEPEST:
                with suppress(Exception):  # none may pass through the library's code
                    begin(phase[:1].lower() + phase[1:])

        def step_complete(self, _phase: str, _step: int) -> bool:
            """Go on: whoever wants no more of a build ends its process; see `child`."""
            return True

        def phase_finish(self, phase: str) -> None:
            """End a phase."""

    return Monitor()
