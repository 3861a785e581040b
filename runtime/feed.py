"""Pieces on their way from the thread that decodes to whoever waits for them."""

import os
import threading
from collections.abc import Callable

from spec_trt.errors import ConfigError
from spec_trt.runtime.stop import Emission

__all__ = ["Feed"]

Listener = Callable[[], object]


class Feed:
    """What one generation has emitted so far. Nobody who puts something in ever waits for who takes it.

    Attributes:
        emissions: All pieces, in order; the last one has a finish reason.
        error: What ended the generation instead.
    """

    def __init__(self) -> None:
        self.emissions: list[Emission] = []
        self.error: BaseException | None = None
        self._ended, self._process = False, os.getpid()
        lock = threading.RLock()
        self._changed, self._over = threading.Condition(lock), threading.Condition(lock)
        self._listeners: list[Listener] = []

    @property
    def ended(self) -> bool:
        """Whether nothing more comes."""
        return self._ended

    def put(self, emission: Emission) -> None:
        """Add a piece; one with a finish reason is the last."""
        with self._changed:
            self.emissions.append(emission)
            self._ended = emission.finish_reason is not None
            self._tell()

    def fail(self, error: BaseException) -> None:
        """End without a finish reason."""
        with self._changed:
            self.error, self._ended = error, True
            self._tell()

    def wait(self, seen: int | None = None, timeout: float | None = None) -> bool:
        """Wait for a piece behind the first `seen` ones, or for the end when None.

        Returns:
            Whether it came before the timeout (in seconds).

        Raises:
            ConfigError: The process has been forked since.
        """
        if os.getpid() != self._process:
            raise ConfigError("this generation is another process's: a fork does not have the thread that decodes")
        with self._changed:
            if seen is None:  # not woken with every piece
                return self._over.wait_for(lambda: self._ended, timeout)
            return self._changed.wait_for(lambda: self._ended or len(self.emissions) > seen, timeout)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Have a function called after every change, by the thread that decodes.

        Returns:
            What ends that.
        """
        with self._changed:
            self._listeners.append(listener)
        return lambda: self._forget(listener)

    def _forget(self, listener: Listener) -> None:
        with self._changed:
            if listener in self._listeners:
                self._listeners.remove(listener)

    def _tell(self) -> None:
        self._changed.notify_all()
        if self._ended:
            self._over.notify_all()
        for listener in list(self._listeners):
            try:
                listener()
            except RuntimeError:  # its event loop is closed: nobody waits there any more
                self._listeners.remove(listener)
