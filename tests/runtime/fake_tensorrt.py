"""What `tensorrt` and `tensorrt_rtx` have of what the runtime calls, on the CPU; only the computing is made up."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from types import ModuleType
from typing import Any

import torch

Shape = tuple[int, ...]
Range = tuple[Shape, Shape, Shape]


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
    """

    inputs: dict[str, DataType]
    outputs: dict[str, DataType]
    profiles: Sequence[Mapping[str, Range]]
    output_shapes: OutputShapes
    compute: Compute
    device_memory_size_v2: int = 1000
    contexts: list["FakeContext"] = field(default_factory=list)
    log: Any = None

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
        self.contexts.append(FakeContext(self, config))
        return self.contexts[-1]


@dataclass
class FakeConfig:
    strategy: ExecutionContextAllocationStrategy = ExecutionContextAllocationStrategy.STATIC
    cache: object = None
    dynamic_shapes_kernel_specialization_strategy: Any = DynamicShapesKernelSpecializationStrategy.LAZY

    def set_execution_context_allocation_strategy(self, strategy: ExecutionContextAllocationStrategy) -> None:
        self.strategy = strategy

    def create_runtime_cache(self) -> object:
        return object()

    def set_runtime_cache(self, cache: object) -> bool:
        self.cache = cache
        return True


@dataclass
class FakeContext:
    """Refuses what the library refuses; reads and writes the memory that it was told of."""

    engine: FakeEngine
    config: FakeConfig
    profile: int = 0
    memory: tuple[int, int] = (0, 0)
    shapes: dict[str, Shape] = field(default_factory=dict)
    addresses: dict[str, int] = field(default_factory=dict)
    runs: int = 0
    fails: bool = False

    def set_device_memory(self, address: int, size: int) -> None:
        self.memory = (address, size)

    def set_optimization_profile_async(self, index: int, _stream: int) -> bool:
        self.profile, self.shapes = index, {}
        return True

    def set_input_shape(self, name: str, shape: Shape) -> bool:
        smallest, _, largest = self.engine.profiles[self.profile][name]
        fits = all(low <= size <= high for low, size, high in zip(smallest, shape, largest, strict=True))
        if fits:
            self.shapes[name] = tuple(shape)
        return fits

    def get_tensor_shape(self, name: str) -> Shape:
        return self.shapes[name] if name in self.engine.inputs else self.engine.output_shapes(self.shapes)[name]

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return address != 0

    def infer_shapes(self) -> list[str]:
        return sorted(set(self.engine.inputs) - set(self.shapes))

    def execute_async_v3(self, _stream: int) -> bool:
        enough = self.memory[1] >= self.engine.device_memory_size_v2
        if self.fails or not enough or set(self.addresses) != {*self.engine.inputs, *self.engine.outputs}:
            self.engine.log.log(ILogger.ERROR, "[fake] IExecutionContext::enqueueV3:\n  something went wrong")
            return False
        self.runs += 1
        tensors = {name: self._tensor(name) for name in self.addresses}
        self.engine.compute(
            {name: tensors[name] for name in self.engine.inputs}, {name: tensors[name] for name in self.engine.outputs}
        )
        return True

    def _tensor(self, name: str) -> torch.Tensor:
        dtype, shape = self.engine.get_tensor_dtype(name).value, self.get_tensor_shape(name)
        count = torch.Size(shape).numel()
        if not count:
            return torch.empty(shape, dtype=dtype)
        memory = (ctypes.c_byte * (count * dtype.itemsize)).from_address(self.addresses[name])
        return torch.frombuffer(memory, dtype=dtype, count=count).view(shape)


def fake_tensorrt(engines: Mapping[bytes, FakeEngine], *, rtx: bool = True) -> ModuleType:
    """The library, which deserializes the engines that it knows."""

    class Runtime:
        def __init__(self, logger: ILogger) -> None:
            self._logger = logger

        def deserialize_cuda_engine(self, blob: bytes) -> FakeEngine | None:
            if blob not in engines:
                self._logger.log(ILogger.ERROR, "[fake] magic tag does not match")
                self._logger.log(ILogger.INFO, "[fake] bye")
                return None
            engines[blob].log = self._logger
            return engines[blob]

    library = ModuleType("tensorrt_rtx" if rtx else "tensorrt")
    library.__dict__.update(
        {
            "ExecutionContextAllocationStrategy": ExecutionContextAllocationStrategy,
            "ILogger": ILogger,
            "Runtime": Runtime,
            "TensorIOMode": TensorIOMode,
        }
    )
    if rtx:
        library.__dict__["DynamicShapesKernelSpecializationStrategy"] = DynamicShapesKernelSpecializationStrategy
    return library


@dataclass
class FakeStream:
    """A stream that runs everything at once, and notes what it was asked."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    handle: int = 7
    calls: list[str] = field(default_factory=list)

    def run(self, work: Callable[[], None]) -> None:
        self.calls.append("run")
        work()

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self.calls.append("capture")

        def replay() -> None:
            self.calls.append("replay")
            work()

        return replay


@contextmanager
def fake_plugin(_library: ModuleType):
    """Nothing needs registering."""
    yield
