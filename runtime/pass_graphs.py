"""The CUDA graphs of a session's passes: which there are, and when one makes room for another."""

import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass

from spec_trt.runtime.captured_run import CapturedRun
from spec_trt.runtime.cuda_stream import Stream
from spec_trt.runtime.shape_profiles import Profile
from spec_trt.runtime.trt_context import BoundPass, TrtContext

__all__ = ["MAX_CUDA_GRAPHS", "RUNS_PER_EVICTION", "PassGraphs"]

MAX_CUDA_GRAPHS = 64
"""CUDA graphs that a session keeps; one more takes the place of the least recently used."""

RUNS_PER_EVICTION = 32
"""Passes that run before one more graph makes room for another: a capture takes as long as many passes, so where more
sizes come in turn than there are places, most of those without a place run as they are."""

_NewContext = Callable[[Profile], TrtContext]


@dataclass(frozen=True, slots=True, kw_only=True)
class _PassGraph:
    """A captured pass, and the context that it is tied to."""

    run: CapturedRun
    context: TrtContext
    profile: int


class PassGraphs:
    """Graphs by pass; one goes when its pass does.

    A graph's context is taken for the next one of its profile: a new context has plugins of its own, which the library
    never frees (see `spec_trt.plugins.tree_attention.plugin`), so that there must be no end of them.

    Args:
        stream: Where they run.
        limit: How many are kept.
    """

    def __init__(self, stream: Stream, *, limit: int = MAX_CUDA_GRAPHS) -> None:
        self._stream, self._limit = stream, limit
        self._kept: OrderedDict[weakref.ref[BoundPass], _PassGraph] = OrderedDict()
        self._ended: deque[weakref.ref[BoundPass]] = deque()
        self._spare: defaultdict[int, list[TrtContext]] = defaultdict(list)
        self._runs_since_eviction = 0

    def __len__(self) -> int:
        return len(self._kept)

    def replay(self, bound: BoundPass) -> bool:
        """Run a pass by its graph, in the order of the caller's stream; False where it has none."""
        self._runs_since_eviction += 1
        if self._ended:
            self._forget_ended()
        key = weakref.ref(bound)
        found = self._kept.get(key)
        if found is None:
            return False
        self._kept.move_to_end(key)
        found.run.run()
        return True

    def has_room(self) -> bool:
        """Whether one more may be captured now."""
        return len(self._kept) < self._limit or self._runs_since_eviction >= RUNS_PER_EVICTION

    def take_context(self, profile: Profile, make: _NewContext) -> TrtContext:
        """A context for a pass to be captured from; `keep` or `give_back` takes it."""
        if len(self._kept) >= self._limit:
            self._runs_since_eviction = 0
            self._drop(next(iter(self._kept)))
        spare = self._spare[profile.index]
        return spare.pop() if spare else make(profile)

    def keep(self, bound: BoundPass, run: CapturedRun, context: TrtContext) -> None:
        """Keep a pass's graph as long as the pass is there."""
        # Its end is only noted: it may come at any time, also while the stream is being captured or in another thread.
        key = weakref.ref(bound, self._ended.append)
        self._kept[key] = _PassGraph(run=run, context=context, profile=bound.profile.index)

    def give_back(self, profile: Profile, context: TrtContext) -> None:
        """Take a context back that no graph is tied to."""
        self._spare[profile.index].append(context)

    def _forget_ended(self) -> None:
        while self._ended:
            self._drop(self._ended.popleft())

    def _drop(self, key: "weakref.ref[BoundPass]") -> None:
        """Free a graph, which may be running, and its context for another."""
        found = self._kept.pop(key, None)
        if found is not None:
            self._stream.synchronize()
            self._spare[found.profile].append(found.context)
