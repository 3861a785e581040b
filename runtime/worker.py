"""The thread that decodes: it takes whoever there is room for, and waits while there is nobody."""

import logging
import os
import threading
from collections import deque

from spec_trt.errors import BusyError, ClosedError
from spec_trt.runtime.batch import Batch
from spec_trt.runtime.live_sequence import LiveSequence

__all__ = ["Worker"]

_LOG = logging.getLogger(__name__)


class Worker:
    """The thread. It knows neither scheduler nor engine: so that forgetting these ends it."""

    def __init__(self, batch: Batch, limit: int) -> None:
        self.closed = False
        self._batch, self._queue = batch, deque[LiveSequence]()
        self._open: list[LiveSequence] = []
        self._limit, self._changed, self._process = limit, threading.Condition(threading.RLock()), os.getpid()
        self._thread = threading.Thread(target=self._run, name="spec-trt", daemon=True)
        self._thread.start()

    @property
    def in_flight(self) -> int:
        """Sequences that have come and not ended."""
        with self._changed:
            self._open = [sequence for sequence in self._open if not sequence.ended]
            return len(self._open)

    def add(self, sequence: LiveSequence, *, wait: bool = False) -> None:
        """Queue a sequence, from any thread; or wait until there is room for it."""
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self.closed or self.in_flight < self._limit)
            if self.closed:
                raise ClosedError("this scheduler is closed: open another one")
            if self.in_flight >= self._limit:
                raise BusyError(f"{len(self._open)} requests are in flight, no more are taken: try again later")
            self._open.append(sequence)
            self._queue.append(sequence)
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread, and all sequences with it. A process that was forked has no such thread."""
        if os.getpid() != self._process:
            return
        with self._changed:
            self.closed = True
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        error: BaseException = ClosedError("the engine was closed before the generation's end")
        try:
            while self._wait_for_work():
                self._admit()
                self._batch.step(self._queue)
        except BaseException as fault:  # a fault of ours: nobody may wait for ever
            _LOG.exception("the scheduler ends on a fault of its own")
            error = fault
        with self._changed:
            self.closed = True
            self._changed.notify_all()
        for sequence in self._queue:
            sequence.feed.fail(error)
        self._batch.fail(error)
        del self._batch, self._queue, self._open[:]

    def _wait_for_work(self) -> bool:
        """Wait until somebody is there; whether to go on."""
        with self._changed:
            self._changed.notify_all()  # who waits for room
            self._changed.wait_for(lambda: self.closed or self._queue or self._batch.live)
            return not self.closed

    def _admit(self) -> None:
        """Begin those who have waited longest, as far as there is room."""
        with self._changed:
            for sequence in self._queue:
                sequence.end_if_asked()
            self._queue = deque(sequence for sequence in self._queue if not sequence.ended)
        while self._queue and self._batch.admit(self._queue[0]):
            self._queue.popleft()
