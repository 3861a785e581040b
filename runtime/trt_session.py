"""TensorRT as a session: both libraries, on torch CUDA tensors bound by address."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from spec_trt.errors import BackendError, SpecTrtError
from spec_trt.manifest import GraphFacts
from spec_trt.runtime.captured_run import CapturedRun
from spec_trt.runtime.cuda_stream import Stream
from spec_trt.runtime.shape_profiles import Profile, choose_profile
from spec_trt.runtime.trt_log import error_log, last_error
from spec_trt.runtime.trt_tensors import check_tensors, read_profiles, read_tensors

__all__ = ["TrtBinding", "TrtSession"]


class TrtSession:
    """A graph run by TensorRT or TensorRT for RTX.

    Every binding has an execution context of its own, as a captured CUDA graph is tied to the state of the context
    that it was captured from; all of them share one block of memory for activations, as only one runs at a time.

    Args:
        path: The engine file.
        graph: Its name, for messages.
        facts: Its interface.
        library: What `import_tensorrt` gave; the plugins that the engine needs are registered with it.
        stream: Where to run it.
        cuda_graphs: Whether a binding is captured on its first run and replayed after that.
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
        keep_alive: object = None,
    ) -> None:
        self.device, self._keep_alive = stream.device, keep_alive
        self._graph, self._library, self._stream, self._cuda_graphs = graph, library, stream, cuda_graphs
        self._dimensions = {tensor.name: tensor.shape for tensor in facts.inputs}
        self._log = error_log(library)
        with _named_errors(f"can't load {path}"):
            self._runtime = library.Runtime(self._log)
            self._engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
            if self._engine is None:
                raise BackendError(f"{library.__name__} can't load {path}: {last_error(self._log)}; build it again")
            self._config, self._kernels = _context_config(library, self._engine, cuda_graphs=cuda_graphs)
            self._memory = _new_bytes(self._engine.device_memory_size_v2, self.device)
        self._tensors = read_tensors(library, self._engine)
        self._profiles = read_profiles(self._engine, [name for name, item in self._tensors.items() if item.is_input])
        self._unread: dict[str, Tensor] = {}

    def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> "TrtBinding":
        """Tie the graph to tensors; see `Session.bind`.

        Raises:
            BackendError: Or, no profile of the engine takes their shapes.
        """
        shapes = check_tensors(self._tensors, inputs, outputs, self.device)
        profile = choose_profile(self._graph, self._profiles, shapes, self._dimensions)
        with _named_errors(f"can't bind the graph {self._graph!r}"):
            context = self._new_context(profile)
            bound = {**inputs, **self._unread_outputs(context, profile, set(outputs)), **outputs}
            for name, shape in shapes.items():
                self._require(context.set_input_shape(name, shape), f"the shape of {name}")
            for name, tensor in bound.items():
                self._require(context.set_tensor_address(name, self._address(tensor)), f"the address of {name}")
            missing = context.infer_shapes()
            self._require(not missing, ", ".join(missing))
        return TrtBinding(self, context, list(bound.values()))

    def run(self, context: Any) -> CapturedRun:  # noqa: ANN401 - the library has no types
        """What runs a context whose shapes and addresses are set."""

        def enqueue(handle: int) -> None:
            self._require(context.execute_async_v3(handle), f"a pass of {self._graph!r}")

        return CapturedRun(enqueue, self._stream, graphs=self._cuda_graphs)

    def _new_context(self, profile: Profile) -> Any:  # noqa: ANN401 - the library has no types
        context = self._engine.create_execution_context(self._config)
        self._require(context is not None, "an execution context")
        context.set_device_memory(self._memory.data_ptr(), self._memory.nbytes)
        if profile.index:
            chosen: list[bool] = []
            self._stream.run(
                lambda: chosen.append(context.set_optimization_profile_async(profile.index, self._stream.handle))
            )
            self._require(all(chosen), f"profile {profile.name}")
        return context

    def _unread_outputs(self, context: Any, profile: Profile, read: set[str]) -> dict[str, Tensor]:  # noqa: ANN401 - as above
        """Memory for the outputs that no one reads, large enough for any pass: every output needs an address."""
        wanted = {name for name, item in self._tensors.items() if not item.is_input} - read
        for name, shape in profile.largest.items():
            self._require(context.set_input_shape(name, shape), f"the largest shape of {name}")
        for name in wanted:
            shape = tuple(context.get_tensor_shape(name))
            size = torch.Size(shape).numel() * self._tensors[name].dtype.itemsize
            if name not in self._unread or self._unread[name].nbytes < size:
                self._unread[name] = _new_bytes(size, self.device)
        return {name: self._unread[name] for name in wanted}

    def _address(self, tensor: Tensor) -> int:
        """Where a tensor is; one without elements still needs a valid address."""
        return tensor.data_ptr() or self._memory.data_ptr()

    def _require(self, accepted: bool, what: str) -> None:
        if not accepted:
            raise BackendError(f"{self._library.__name__} refuses {what}: {last_error(self._log)}")


class TrtBinding:
    """An execution context with its shapes and addresses set, keeping its tensors alive."""

    def __init__(self, session: TrtSession, context: Any, tensors: list[Tensor]) -> None:  # noqa: ANN401 - the library has no types
        self._session, self._tensors = session, tensors
        self._run = session.run(context)

    def run(self) -> None:
        """Run the graph, in the order of the caller's CUDA stream; see `Binding.run`."""
        with _named_errors("a pass failed"):
            self._run.run()


def _context_config(library: ModuleType, engine: Any, *, cuda_graphs: bool) -> tuple[Any, Any]:  # noqa: ANN401 - as above
    """How contexts are made: their memory is ours, and what is compiled at run time is compiled once for all of them.

    With it comes the cache of compiled kernels, which must live as long.

    TensorRT for RTX compiles kernels for the shapes it meets. By default it does so behind the caller's back, and
    replaces kernels that a captured graph holds; where graphs are captured it must do so at once.
    """
    config = engine.create_runtime_config()
    config.set_execution_context_allocation_strategy(library.ExecutionContextAllocationStrategy.USER_MANAGED)
    strategies = getattr(library, "DynamicShapesKernelSpecializationStrategy", None)  # only TensorRT for RTX has it
    kernels = None
    if strategies is not None:
        kernels = config.create_runtime_cache()
        config.set_runtime_cache(kernels)
        config.dynamic_shapes_kernel_specialization_strategy = strategies.EAGER if cuda_graphs else strategies.LAZY
    return config, kernels


def _new_bytes(size: int, device: torch.device) -> Tensor:
    return torch.empty(max(size, 1), dtype=torch.uint8, device=device)


@contextmanager
def _named_errors(what: str) -> Iterator[None]:
    """Turn what the library, CUDA or PyTorch raise into one line."""
    try:
        yield
    except SpecTrtError:
        raise
    except torch.OutOfMemoryError as error:
        raise BackendError(
            f"{what}: the GPU's memory is full; free some, or build again with a smaller --max-length or --max-batch"
        ) from error
    except Exception as error:  # each of them raises its own, unrelated types
        raise BackendError(f"{what}: {' '.join(str(error).split()) or type(error).__name__}") from error
