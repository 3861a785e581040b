"""Work on a GPU that runs once as it is, and is replayed as one CUDA graph after that."""

from collections.abc import Callable

from spec_trt.errors import BackendError
from spec_trt.runtime.cuda_stream import Stream

__all__ = ["CapturedRun"]


class CapturedRun:
    """The same work again and again, on tensors that stay where they are.

    The first run is an ordinary one: libraries allocate, compile and settle what depends on shapes, none of which may
    happen in a capture.

    Args:
        work: Enqueues the work on a stream's handle.
        stream: Where to run and capture it.
        graphs: Whether to capture it at all.
        capturable: Says after the first run whether it can be captured; asked once.
        on_refusal: Takes the reason where it could not be, and every run is an ordinary one; when None, the first
            `run` raises it.
    """

    def __init__(
        self,
        work: Callable[[int], None],
        stream: Stream,
        *,
        graphs: bool = True,
        capturable: Callable[[], bool] | None = None,
        on_refusal: Callable[[Exception], None] | None = None,
    ) -> None:
        self._work, self._stream, self._to_capture = work, stream, graphs
        self._capturable, self._on_refusal = capturable, on_refusal
        self._replay: Callable[[], None] | None = None

    def run(self) -> None:
        """Enqueue the work, in the order of the caller's stream."""
        if self._replay is not None:
            self._replay()
            return
        self._stream.run(self._enqueue)
        if self._to_capture:
            self._to_capture = False  # a second try would end as the first
            self._capture()

    def _capture(self) -> None:
        try:
            self._ask()
            self._replay = self._stream.capture(self._enqueue)
        except (BackendError, RuntimeError) as error:  # CUDA's errors are PyTorch's own, which are RuntimeErrors
            if self._on_refusal is None:
                raise
            self._on_refusal(error)

    def _ask(self) -> None:
        if self._capturable is not None and not self._capturable():
            raise BackendError("the library says that they can't be captured")

    def _enqueue(self) -> None:
        self._work(self._stream.handle)
