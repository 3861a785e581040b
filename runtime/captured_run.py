"""Work on a GPU that runs once as it is, and is replayed as one CUDA graph after that."""

from collections.abc import Callable

from spec_trt.runtime.cuda_stream import Stream

__all__ = ["CapturedRun"]


class CapturedRun:
    """The same work again and again, on tensors that stay where they are.

    The first run is an ordinary one: libraries allocate, compile and settle what depends on shapes, none of which may
    happen in a capture.

    Args:
        work: Enqueues the work on a stream's handle.
        stream: Where to run and capture it.
        graphs: Whether the first run captures it; else it is captured when `capture` is called.
    """

    def __init__(self, work: Callable[[int], None], stream: Stream, *, graphs: bool = True) -> None:
        self._work, self._stream, self._to_capture = work, stream, graphs
        self._replay: Callable[[], None] | None = None

    def run(self) -> None:
        """Enqueue the work, in the order of the caller's stream."""
        if self._replay is not None:
            self._replay()
            return
        self._stream.run(self._enqueue)
        if self._to_capture:
            self._to_capture = False  # a second try would end as the first
            self.capture()

    def capture(self) -> None:
        """Record the work, once it has run, for all runs to come.

        Raises:
            BackendError: The work does, in a capture.
            RuntimeError: CUDA can't capture it.
        """
        self._replay = self._stream.capture(self._enqueue)

    def _enqueue(self) -> None:
        self._work(self._stream.handle)
