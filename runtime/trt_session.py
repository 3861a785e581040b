"""TensorRT as a session: both libraries, on torch CUDA tensors bound by address."""

import logging
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from spec_trt.errors import BackendError, SpecTrtError
from spec_trt.manifest import GraphFacts
from spec_trt.runtime.captured_run import CapturedRun
from spec_trt.runtime.cuda_stream import Stream
from spec_trt.runtime.kernel_cache import KernelCache
from spec_trt.runtime.pass_graphs import MAX_CUDA_GRAPHS, PassGraphs
from spec_trt.runtime.shape_profiles import Profile, choose_profile
from spec_trt.runtime.trt_context import BoundPass, TrtContext
from spec_trt.runtime.trt_log import Complaints, last_error, one_line
from spec_trt.runtime.trt_tensors import check_tensors, read_profiles, read_tensors

__all__ = ["TrtBinding", "TrtSession"]

_LOGGER = logging.getLogger(__name__)


class TrtSession:
    """A graph run by TensorRT or TensorRT for RTX.

    Ordinary passes share one execution context per profile, which is given their shapes and addresses in turn. A pass
    that is captured has a context of its own: a CUDA graph is tied to the state of the context that it was captured
    from, so both libraries ask for a context per graph. All contexts share one block of memory for activations, as
    only one runs at a time.

    Args:
        path: The engine file.
        graph: Its name, for messages.
        facts: Its interface.
        library: What `import_tensorrt` gave; the plugins that the engine needs are registered with it.
        stream: Where to run it.
        cuda_graphs: Whether a pass is captured on its first run and replayed after that.
        max_cuda_graphs: How many are kept.
        kernels: Where TensorRT for RTX's compiled kernels are kept from run to run; nowhere when None.
        plugin_failure: Gives what the plugin raised last, told once.
        keep_alive: What must live as long as the session does: the plugins' registration.

    Raises:
        BackendError: The library refuses the file, or the GPU's memory is too small.
    """

    def __init__(
        self,
        path: Path,
        graph: str,
        facts: GraphFacts,
        *,
        library: ModuleType,
        stream: Stream,
        cuda_graphs: bool = True,
        max_cuda_graphs: int = MAX_CUDA_GRAPHS,
        kernels: KernelCache | None = None,
        plugin_failure: Callable[[], Exception | None] | None = None,
        keep_alive: object = None,
    ) -> None:
        self.device, self._keep_alive = stream.device, keep_alive
        self._graph, self._stream, self._cuda_graphs = graph, stream, cuda_graphs
        self._dimensions = {tensor.name: tensor.shape for tensor in facts.inputs}
        self._complaints, self._kernels = Complaints(library, plugin_failure), kernels
        with self._calling(f"can't load {path}"):
            self._runtime = library.Runtime(self._complaints.log)
            self._engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
            if self._engine is None:
                reason = last_error(self._complaints.log)
                raise BackendError(f"{library.__name__} can't load {path}: {reason}; build it again")
            self._compiled: Any = None
            self._config = self._new_config(library, kernels)
            self._memory = _new_bytes(self._engine.device_memory_size_v2, self.device)
            self._tensors = read_tensors(library, self._engine)
            inputs = [name for name, item in self._tensors.items() if item.is_input]
            self._profiles = read_profiles(self._engine, inputs)
            self._contexts = [self._new_context(profile) for profile in self._profiles]
            self._output_sizes = self._largest_outputs()
        self._unread: dict[str, Tensor] = {}
        self._graphs = PassGraphs(stream, limit=max_cuda_graphs)
        self._uncapturable: weakref.WeakSet[BoundPass] = weakref.WeakSet()
        self._warned = False
        weakref.finalize(self, _wait_for, stream)  # contexts, graphs and their memory are in use until then

    def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> "TrtBinding":
        """Tie the graph to tensors; see `Session.bind`.

        Raises:
            BackendError: Or, no profile of the engine takes their shapes.
        """
        shapes = check_tensors(self._tensors, inputs, outputs, self.device)
        profile = choose_profile(self._graph, self._profiles, shapes, self._dimensions)
        with self._calling(f"can't bind the graph {self._graph!r}"):
            self._stream.settle()
            unread = {name: self._room(name) for name in self._output_sizes if name not in outputs}
            bound = BoundPass(profile=profile, shapes=shapes, tensors={**inputs, **unread, **outputs})
            self._contexts[profile.index].bind(bound)  # what the library refuses of it is better known now
        if self._kernels is not None:
            self._kernels.expect_more()
        return TrtBinding(self, bound)

    def run(self, bound: BoundPass) -> None:
        """Run a pass that `bind` made, in the order of the caller's CUDA stream.

        Raises:
            BackendError: It failed.
        """
        with self._calling("a pass failed"):
            if not self._cuda_graphs or bound in self._uncapturable:
                self._run_uncaptured(bound)
            elif not self._graphs.replay(bound):
                if self._graphs.has_room():
                    self._run_and_capture(bound)
                else:
                    self._run_uncaptured(bound)
        if self._kernels is not None and self._compiled is not None:
            self._kernels.save_if_due(self._compiled)

    @contextmanager
    def _calling(self, what: str) -> Iterator[None]:
        """Call the library on its GPU, and turn what it, CUDA or PyTorch raise into one line."""
        try:
            with self._stream.on_device():
                yield
        except SpecTrtError:
            raise
        except torch.OutOfMemoryError as error:
            raise BackendError(
                f"{what}: the GPU's memory is full; free some, or build again with a smaller --max-length or "
                "--max-batch"
            ) from error
        except Exception as error:  # each of them raises its own, unrelated types
            raise BackendError(f"{what}: {one_line(error)}") from error

    def _run_uncaptured(self, bound: BoundPass) -> None:
        context = self._contexts[bound.profile.index]
        context.bind(bound)
        self._stream.run(partial(context.enqueue, self._stream.handle))

    def _run_and_capture(self, bound: BoundPass) -> None:
        context = self._graphs.take_context(bound.profile, self._new_context)
        kept = False
        try:
            context.bind(bound)
            run = CapturedRun(context.enqueue, self._stream, graphs=False)
            run.run()
            if not context.is_capturable(self._stream.handle):
                self._uncapturable.add(bound)
                self._warn("the library says that they can't be captured")
            elif self._try_capture(run):
                self._graphs.keep(bound, run, context)
                kept = True
        finally:
            if not kept:
                self._graphs.give_back(bound.profile, context)

    def _try_capture(self, run: CapturedRun) -> bool:
        """Capture a pass that has run; the first failure is the last try.

        What is left of a failed capture may be in the way of the next: before its release 2.12 PyTorch's allocator
        goes on as if the capture did.
        """
        try:
            run.capture()
        except (BackendError, RuntimeError) as error:  # CUDA's errors are PyTorch's own, which are RuntimeErrors
            self._cuda_graphs = False
            self._warn(one_line(error))
            return False
        return True

    def _warn(self, reason: str) -> None:
        """Say the first time that passes run without CUDA graphs."""
        if not self._warned:
            _LOGGER.warning(
                "passes of the graph %r run without CUDA graphs, which is slower: %s; "
                "with --no-cuda-graphs none is tried",
                self._graph,
                reason,
            )
        self._warned = True

    def _new_config(self, library: ModuleType, kernels: KernelCache | None) -> Any:  # noqa: ANN401 - the library has no types
        """How contexts are made: their memory is ours, and what is compiled at run time is compiled once for all.

        TensorRT for RTX compiles kernels for the shapes it meets. By default it does so behind the caller's back, and
        replaces kernels that a captured graph holds; where graphs are captured it must do so at once.
        """
        config = self._engine.create_runtime_config()
        config.set_execution_context_allocation_strategy(library.ExecutionContextAllocationStrategy.USER_MANAGED)
        strategies = getattr(
            library, "DynamicShapesKernelSpecializationStrategy", None
        )  # TensorRT for RTX alone has it
        if strategies is None:
            return config
        config.dynamic_shapes_kernel_specialization_strategy = (
            strategies.EAGER if self._cuda_graphs else strategies.LAZY
        )
        compiled = config.create_runtime_cache()
        if kernels is not None:
            kernels.load(compiled)
            # Also when the process ends; what it is part of must live until then.
            weakref.finalize(self, kernels.save, compiled, (self._runtime, self._engine, config))
        self._complaints.require(config.set_runtime_cache(compiled), "a cache of compiled kernels")
        self._compiled = compiled
        return config

    def _new_context(self, profile: Profile) -> TrtContext:
        context, require = self._engine.create_execution_context(self._config), self._complaints.require
        require(context is not None, "an execution context")
        context.set_device_memory(self._memory.data_ptr(), self._memory.nbytes)
        if profile.index:
            chosen: list[bool] = []
            self._stream.run(
                lambda: chosen.append(context.set_optimization_profile_async(profile.index, self._stream.handle))
            )
            require(all(chosen), f"profile {profile.name}")
        return TrtContext(context, self._graph, memory=self._memory, complaints=self._complaints)

    def _largest_outputs(self) -> dict[str, int]:
        """Bytes of every output in the largest pass."""
        types = {name: item.dtype for name, item in self._tensors.items() if not item.is_input}
        sizes = [
            context.output_sizes(profile.largest, types)
            for context, profile in zip(self._contexts, self._profiles, strict=True)
        ]
        return {name: max(found[name] for found in sizes) for name in types}

    def _room(self, name: str) -> Tensor:
        """Memory for an output that no one reads, large enough for any pass: every output needs an address."""
        if name not in self._unread:
            self._unread[name] = _new_bytes(self._output_sizes[name], self.device)
        return self._unread[name]


class TrtBinding:
    """A pass of a session's."""

    def __init__(self, session: TrtSession, bound: BoundPass) -> None:
        self._session, self._bound = session, bound

    def run(self) -> None:
        """Run the graph, in the order of the caller's CUDA stream; see `Binding.run`."""
        self._session.run(self._bound)


def _new_bytes(size: int, device: torch.device) -> Tensor:
    return torch.empty(max(size, 1), dtype=torch.uint8, device=device)


def _wait_for(stream: Stream) -> None:
    """Wait for what is running; whether it fails is no longer of interest."""
    with suppress(RuntimeError):
        stream.synchronize()
