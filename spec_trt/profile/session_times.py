"""When an engine's graphs ran: a back end around another one that keeps the time of every run."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from spec_trt.runtime.backend import Backend
from spec_trt.runtime.fixed_shapes import FixedShapes
from spec_trt.runtime.session import Binding, Session

__all__ = ["SessionRun", "TimedBackend", "TimedBinding", "TimedSession"]


@dataclass(frozen=True, slots=True)
class SessionRun:
    """One run of a graph, from and to readings of `time.perf_counter`; on a GPU until it was done there."""

    graph: str
    started: float
    ended: float


class TimedBackend:
    """Runs another back end's graphs.

    Attributes:
        runs: Of all graphs, in order.
        device: Where they run.

    Args:
        inner: What runs them.
    """

    def __init__(self, inner: Backend) -> None:
        self.runs: list[SessionRun] = []
        self.device = torch.device("cpu")
        self._inner = inner

    def open(self, graph: str) -> Session:
        """Load a graph; see `Backend.open`."""
        session = self._inner.open(graph)
        self.device = session.device
        return TimedSession(session, graph, self.runs)

    def fixed_shapes(self, graph: str) -> FixedShapes | None:
        """See `Backend.fixed_shapes`."""
        return self._inner.fixed_shapes(graph)


class TimedSession:
    """A graph of another back end.

    Args:
        inner: The graph's session.
        graph: Its name.
        runs: Where its runs are noted.
    """

    def __init__(self, inner: Session, graph: str, runs: list[SessionRun]) -> None:
        self.device = inner.device
        self._inner, self._graph, self._runs = inner, graph, runs

    def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> "TimedBinding":
        """See `Session.bind`."""
        return TimedBinding(self._inner.bind(inputs, outputs), self._graph, self.device, self._runs)


class TimedBinding:
    """A bound graph of another back end; arguments as `TimedSession`'s."""

    def __init__(self, inner: Binding, graph: str, device: torch.device, runs: list[SessionRun]) -> None:
        self._inner, self._graph, self._runs = inner, graph, runs
        self._device = device

    def run(self) -> None:
        """Run the graph once, and wait for it; see `Binding.run`."""
        started = time.perf_counter()
        self._inner.run()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._runs.append(SessionRun(self._graph, started, time.perf_counter()))
