"""What a build is doing, and how it is stopped."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

__all__ = ["deferred_interrupts", "progress_monitor"]

_DEEPEST = 5  # below are phases by the hundred, of no time at all


@contextmanager
def deferred_interrupts() -> Iterator[Callable[[], bool]]:
    """Hold Ctrl-C and the signals that kill until the block's end, and then raise `KeyboardInterrupt`.

    The library calls back into Python from code that no exception may pass through.

    Yields:
        Whether one has come: the block may end early.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # its owner handles signals
        yield lambda: False
        return
    previous = {
        number: signal.signal(number, lambda number, _: received.append(number))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        if received:
            raise KeyboardInterrupt


def progress_monitor(library: ModuleType, begin: Callable[[str], object], stopped: Callable[[], bool]) -> Any:  # noqa: ANN401 - the library has no types
    """What the library reports its progress to: an `IProgressMonitor`.

    Args:
        library: `tensorrt` or `tensorrt_rtx`.
        begin: Told of each phase as it begins.
        stopped: Whether the build is to end now.
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
                with suppress(Exception):  # a display that fails is no reason to end the process
                    begin(phase[:1].lower() + phase[1:])

        def step_complete(self, _phase: str, _step: int) -> bool:
            """Whether to go on."""
            return not stopped()

        def phase_finish(self, phase: str) -> None:
            """End a phase."""

    return Monitor()
