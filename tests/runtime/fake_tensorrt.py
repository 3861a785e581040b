"""What `tensorrt` and `tensorrt_rtx` have of what the runtime calls, on the CPU; only the computing is made up.

It holds the runtime to what the libraries ask of their callers, and can't check themselves on a GPU: aligned addresses
of living memory, one logger per process, an ordinary pass before a capture, and a context that is left as it is for as
long as a graph that was captured from it is replayed.
"""

import ctypes
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import count
from types import ModuleType
from typing import Any, ClassVar

import torch

from tests.runtime.device_memory import ALIGNMENT, Allocation, DeviceMemory

Shape = tuple[int, ...]
Range = tuple[Shape, Shape, Shape]

KERNELS = b"fake kernels of "


class DataType(Enum):
    FLOAT = torch.float32
    HALF = torch.float16
    INT64 = torch.int64
    BOOL = torch.bool
    FP8 = torch.float8_e4m3fn


class TensorIOMode(Enum):
    INPUT = 1
    OUTPUT = 2


class ExecutionContextAllocationStrategy(Enum):
    STATIC = 0
    USER_MANAGED = 2


class DynamicShapesKernelSpecializationStrategy(Enum):
    LAZY = 0
    EAGER = 1


class ILogger:
    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)

    def log(self, severity: int, text: str) -> None:
        raise NotImplementedError


OutputShapes = Callable[[Mapping[str, Shape]], Mapping[str, Shape]]
Compute = Callable[[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]], None]


@dataclass(kw_only=True)
class FakeEngine:
    """A compiled graph.

    Attributes:
        inputs: Type by name.
        outputs: Type by name.
        profiles: Per profile, per input: smallest, optimal and largest shape.
        output_shapes: From the shapes of inputs.
        compute: Fills outputs from inputs.
        capturable: Whether its contexts say that they can be captured.
        breaks_captures: Whether a capture of them fails all the same.
        fails: Whether every pass does.
        memory: Where its tensors may be; set on loading, as is `log`.
        made: Contexts that were made so far.
    """

    inputs: dict[str, DataType]
    outputs: dict[str, DataType]
    profiles: Sequence[Mapping[str, Range]]
    output_shapes: OutputShapes
    compute: Compute
    device_memory_size_v2: int = 1000
    capturable: bool = True
    breaks_captures: bool = False
    fails: bool = False
    memory: DeviceMemory = field(default_factory=DeviceMemory)
    log: Any = None
    made: list["weakref.ref[FakeContext]"] = field(default_factory=list)

    @property
    def num_io_tensors(self) -> int:
        return len(self.inputs) + len(self.outputs)

    @property
    def num_optimization_profiles(self) -> int:
        return len(self.profiles)

    def get_tensor_name(self, index: int) -> str:
        return [*self.inputs, *self.outputs][index]

    def get_tensor_dtype(self, name: str) -> DataType:
        return {**self.inputs, **self.outputs}[name]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.INPUT if name in self.inputs else TensorIOMode.OUTPUT

    def get_tensor_profile_shape(self, name: str, index: int) -> Range:
        return self.profiles[index][name]

    def create_runtime_config(self) -> "FakeConfig":
        return FakeConfig()

    def create_execution_context(self, config: "FakeConfig") -> "FakeContext":
        FakeStream.check_entered()
        context = FakeContext(self, config)
        self.made.append(weakref.ref(context))
        return context


def living_contexts(engine: FakeEngine) -> list["FakeContext"]:
    return [context for made in engine.made if (context := made()) is not None]


@dataclass
class FakeRuntimeCache:
    """Kernels by what they were compiled for; taken over as long as they are this machine's."""

    kernels: set[str] = field(default_factory=set)

    def serialize(self) -> bytearray:
        return bytearray(KERNELS + ";".join(sorted(self.kernels)).encode())

    def deserialize(self, blob: bytes) -> bool:
        if not blob.startswith(KERNELS):
            return False
        self.kernels = set(filter(None, blob.removeprefix(KERNELS).decode().split(";")))
        return True


@dataclass
class FakeConfig:
    strategy: ExecutionContextAllocationStrategy = ExecutionContextAllocationStrategy.STATIC
    cache: Any = None
    dynamic_shapes_kernel_specialization_strategy: Any = DynamicShapesKernelSpecializationStrategy.LAZY

    def set_execution_context_allocation_strategy(self, strategy: ExecutionContextAllocationStrategy) -> None:
        self.strategy = strategy

    def create_runtime_cache(self) -> FakeRuntimeCache:
        return FakeRuntimeCache()

    def set_runtime_cache(self, cache: FakeRuntimeCache) -> bool:
        self.cache = cache
        return True


@dataclass(frozen=True)
class Launch:
    """A pass as it was enqueued: with the addresses of then, in the state that its context was in."""

    context: "weakref.ref[FakeContext]"
    changes: int
    tensors: Mapping[str, tuple[int, Shape]]
    allocations: Sequence[Allocation]

    def run(self, *, captured: bool = True) -> None:
        what = "a captured graph" if captured else "a pass in flight"
        context = self.context()
        assert context is not None, f"the context of {what} is gone"
        assert not captured or context.changes == self.changes, "the context of a captured graph has been changed"
        assert not any(one.is_freed for one in self.allocations), f"memory that {what} uses was freed"
        context._compute_at(self.tensors)


@dataclass(eq=False)
class FakeContext:
    """Refuses what the library refuses; reads and writes the memory that it was told of."""

    engine: FakeEngine
    config: FakeConfig
    profile: int = 0
    memory: tuple[int, int] = (0, 0)
    shapes: dict[str, Shape] = field(default_factory=dict)
    addresses: dict[str, int] = field(default_factory=dict)
    changes: int = 0
    settled: int = -1
    runs: int = 0

    def set_device_memory(self, address: int, size: int) -> None:
        self._check_address(address, size)
        self.memory = (address, size)
        self.changes += 1

    def set_optimization_profile_async(self, index: int, stream: int) -> bool:
        assert stream in FakeStream.known
        self.profile, self.shapes = index, {}
        self.changes += 1
        return True

    def set_input_shape(self, name: str, shape: Shape) -> bool:
        smallest, _, largest = self.engine.profiles[self.profile][name]
        fits = all(low <= size <= high for low, size, high in zip(smallest, shape, largest, strict=True))
        if fits:
            self.shapes[name] = tuple(shape)
            self.changes += 1
        return fits

    def get_tensor_shape(self, name: str) -> Shape:
        return self.shapes[name] if name in self.engine.inputs else self.engine.output_shapes(self.shapes)[name]

    def set_tensor_address(self, name: str, address: int) -> bool:
        self._check_address(address, 0)
        self.addresses[name] = address
        self.changes += 1
        return True

    def infer_shapes(self) -> list[str]:
        FakeStream.check_entered()
        return sorted(set(self.engine.inputs) - set(self.shapes))

    def is_stream_capturable(self, stream: int) -> bool:
        assert stream in FakeStream.known
        return self.engine.capturable

    def execute_async_v3(self, stream: int) -> bool:
        if self.engine.fails or self._lacks():
            self.engine.log.log(ILogger.ERROR, "[fake] IExecutionContext::enqueueV3:\n  something went wrong")
            return False
        recorded = FakeStream.known[stream].recorded
        if recorded is None:
            self.settled = self.changes
            self._compile()
            FakeStream.known[stream].enqueue(partial(self._launch().run, captured=False))
        elif self.engine.breaks_captures:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nCompile with DSA")
        else:
            assert self.settled == self.changes, "a capture without an ordinary pass of the same shapes before it"
            recorded.append(self._launch())
        return True

    def _compute_at(self, places: Mapping[str, tuple[int, Shape]]) -> None:
        self.runs += 1
        tensors = {name: self._tensor(name, *place) for name, place in places.items()}
        inputs = {name: tensors[name] for name in self.engine.inputs}
        self.engine.compute(inputs, {name: tensors[name] for name in self.engine.outputs})

    def _lacks(self) -> bool:
        every = {*self.engine.inputs, *self.engine.outputs}
        return (
            bool(self.infer_shapes())
            or set(self.addresses) != every
            or self.memory[1] < self.engine.device_memory_size_v2
        )

    def _check_address(self, address: int, size: int) -> None:
        assert address, "no address"
        assert address % ALIGNMENT == 0, f"{address:#x} is no multiple of {ALIGNMENT}"
        self.engine.memory.allocation(address, size)

    def _launch(self) -> Launch:
        """What runs now or later: every tensor whole, in memory that is there."""
        places = {name: (address, tuple(self.get_tensor_shape(name))) for name, address in self.addresses.items()}
        allocations = [self.engine.memory.allocation(*self.memory)]
        for name, (address, shape) in places.items():
            size = torch.Size(shape).numel() * self.engine.get_tensor_dtype(name).value.itemsize
            allocations.append(self.engine.memory.allocation(address, size))
        return Launch(weakref.ref(self), self.changes, places, allocations)

    def _compile(self) -> None:
        if self.config.cache is not None:
            self.config.cache.kernels.add(str(sorted(self.shapes.items())))

    def _tensor(self, name: str, address: int, shape: Shape) -> torch.Tensor:
        dtype = self.engine.get_tensor_dtype(name).value
        size = torch.Size(shape).numel()
        if not size:
            return torch.empty(shape, dtype=dtype)
        memory = (ctypes.c_byte * (size * dtype.itemsize)).from_address(address)
        return torch.frombuffer(memory, dtype=dtype, count=size).view(shape)


def fake_tensorrt(
    engines: Mapping[bytes, FakeEngine], *, rtx: bool = True, memory: DeviceMemory | None = None
) -> ModuleType:
    """The library, which deserializes the engines that it knows; it tells its errors to the first logger it gets."""
    loggers: list[ILogger] = []

    class Runtime:
        def __init__(self, logger: ILogger) -> None:
            loggers.append(logger)

        def deserialize_cuda_engine(self, blob: bytes) -> FakeEngine | None:
            FakeStream.check_entered()
            if blob not in engines:
                loggers[0].log(ILogger.ERROR, "[fake] magic tag does not match")
                loggers[0].log(ILogger.INFO, "[fake] bye")
                return None
            engines[blob].log = loggers[0]
            engines[blob].memory = memory or engines[blob].memory
            return engines[blob]

    library = ModuleType("tensorrt_rtx" if rtx else "tensorrt")
    library.__dict__.update(
        {
            "ExecutionContextAllocationStrategy": ExecutionContextAllocationStrategy,
            "ILogger": ILogger,
            "Runtime": Runtime,
            "TensorIOMode": TensorIOMode,
            "__version__": "1.0.0",
        }
    )
    if rtx:
        library.__dict__["DynamicShapesKernelSpecializationStrategy"] = DynamicShapesKernelSpecializationStrategy
    return library


@dataclass(eq=False)
class FakeStream:
    """A stream that notes what it was asked.

    Attributes:
        device: Where it is.
        settled: How often the whole device was waited for.
        lazy: Whether what is enqueued waits until someone waits for it, as late as it may be on a GPU; else it runs at
            once.
        entered: How many hold its GPU as their own; the library is called by no one else.
        calls: What was asked.
        recorded: What the capture that is under way has so far.
    """

    known: ClassVar[weakref.WeakValueDictionary[int, "FakeStream"]] = weakref.WeakValueDictionary()
    handles: ClassVar["count[int]"] = count(7)

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    lazy: bool = False
    entered: int = 0
    settled: int = 0
    calls: list[str] = field(default_factory=list)
    recorded: list[Launch] | None = None

    def __post_init__(self) -> None:
        self.handle = next(self.handles)
        self.known[self.handle] = self
        self._in_flight: list[Callable[[], None]] = []

    def enqueue(self, launch: Callable[[], None]) -> None:
        self._in_flight.append(launch)
        if not self.lazy:
            self._finish()

    @contextmanager
    def on_device(self) -> Iterator[None]:
        self.entered += 1
        try:
            yield
        finally:
            self.entered -= 1

    @classmethod
    def check_entered(cls) -> None:
        assert any(stream.entered for stream in cls.known.values()), "on whichever GPU the thread has"

    def settle(self) -> None:
        self.settled += 1

    def run(self, work: Callable[[], None]) -> None:
        self.calls.append("run")
        with self.on_device():
            work()

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self.calls.append("capture")
        launches = self.recorded = []
        try:
            with self.on_device():
                work()
        finally:
            self.recorded = None

        def replay() -> None:
            self.calls.append("replay")
            for launch in launches:
                self.enqueue(launch.run)

        return replay

    def synchronize(self) -> None:
        self.calls.append("synchronize")
        self._finish()

    def _finish(self) -> None:
        launches, self._in_flight = self._in_flight, []
        for launch in launches:
            launch()
