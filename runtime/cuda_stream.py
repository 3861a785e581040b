"""A CUDA stream of the runtime's own: where libraries enqueue, and where their work is captured.

A thread has a current GPU and a current stream per GPU of its own, device 0's and the default ones at first, and the
thread that decodes is not the one that loads. So whoever calls a library or a kernel does so with `on_device`, all
passes of a back end run on its one stream, in order with the caller's, and before tensors are bound it waits for what
any thread has put into them.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Protocol

import torch

from spec_trt.errors import BackendError

__all__ = ["CudaStream", "Stream", "on_device", "require_gpu"]

Work = Callable[[], None]


class Stream(Protocol):
    """A queue of work on a device."""

    device: torch.device
    """Where it is."""
    handle: int
    """Its `cudaStream_t`."""

    def on_device(self) -> AbstractContextManager[object]:
        """Make its GPU the thread's own for a while; see `on_device`."""

    def settle(self) -> None:
        """Wait for all that the device was asked to do, by any thread."""

    def run(self, work: Work) -> None:
        """Enqueue work here: behind what the caller's stream holds, and before what the caller enqueues next."""

    def capture(self, work: Work) -> Work:
        """Record work without running it.

        Returns:
            What enqueues all of it at once, as `run` does.
        """

    def synchronize(self) -> None:
        """Wait for all that this stream and the caller's hold."""


class CudaStream:
    """A stream of PyTorch's.

    Args:
        device: The GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.handle = int(self._stream.cuda_stream)

    def on_device(self) -> AbstractContextManager[object]:
        """Make its GPU the thread's own for a while; see `on_device`."""
        return on_device(self.device)

    def settle(self) -> None:
        """Wait for the device; see `Stream.settle`."""
        torch.cuda.synchronize(self.device)

    def run(self, work: Work) -> None:
        """Enqueue work here, with its GPU as the thread's own; see `Stream.run`."""
        caller = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(caller)
        with torch.cuda.stream(self._stream):
            work()
        caller.wait_stream(self._stream)

    def capture(self, work: Work) -> Work:
        """Record work as a CUDA graph; see `Stream.capture`.

        Not by `torch.cuda.graph`, which gives all of PyTorch's cached memory back first.
        """
        graph = torch.cuda.CUDAGraph()
        self._stream.synchronize()
        with _no_collection(), torch.cuda.stream(self._stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                work()
            except BaseException:
                _abandon(graph)
                raise
            graph.capture_end()
        return partial(self.run, graph.replay)

    def synchronize(self) -> None:
        """Wait for what is enqueued; see `Stream.synchronize`."""
        torch.cuda.current_stream(self.device).synchronize()
        self._stream.synchronize()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep Python from collecting garbage: what belongs to the GPU may not be freed during a capture."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _abandon(graph: torch.cuda.CUDAGraph) -> None:
    """End a capture whose work failed; that it is invalid is known."""
    try:
        graph.capture_end()
    except RuntimeError:
        return


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Make a GPU the thread's own for a while: libraries and kernels run on that of the thread that calls them.

    Args:
        device: The GPU; with a CPU there is nothing to do.
    """
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def require_gpu() -> torch.device:
    """The GPU that engines run on.

    Raises:
        BackendError: There is none, or PyTorch can't reach it.
    """
    if not torch.cuda.is_available():
        build = "a build without CUDA" if torch.version.cuda is None else f"built for CUDA {torch.version.cuda}"
        raise BackendError(
            f"no NVIDIA GPU is within reach (PyTorch {torch.__version__} is {build}): run on a machine with one and "
            "a CUDA build of PyTorch, or build the engine with `--backend ort`"
        )
    return torch.device("cuda", torch.cuda.current_device())
