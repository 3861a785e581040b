"""An execution context of TensorRT's, which has the shapes and addresses of one pass at a time."""

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spec_trt.runtime.shape_profiles import Profile, Shape
from spec_trt.runtime.trt_log import Complaints

__all__ = ["BoundPass", "TrtContext"]


@dataclass(frozen=True, kw_only=True, eq=False)
class BoundPass:
    """What one pass is bound to; two are the same only if they are one.

    Attributes:
        profile: The engine's profile that it runs in.
        shapes: Of every input.
        tensors: Every input and output.
    """

    profile: Profile
    shapes: Mapping[str, Shape]
    tensors: Mapping[str, Tensor]


class TrtContext:
    """A context in one profile.

    Args:
        context: The library's `IExecutionContext`, its profile chosen and its memory set.
        graph: The graph's name, for messages.
        memory: Where it keeps activations.
        complaints: Makes the library's refusals into errors.
    """

    def __init__(self, context: Any, graph: str, *, memory: Tensor, complaints: Complaints) -> None:  # noqa: ANN401 - the library has no types
        self._context, self._graph = context, graph
        self._memory, self._complaints = memory, complaints
        self._bound: weakref.ref[BoundPass] | None = None  # whoever runs a pass keeps its tensors

    def bind(self, bound: BoundPass) -> None:
        """Take the shapes and addresses of a pass, unless it has them already.

        Raises:
            BackendError: The library refuses one.
        """
        if self._bound is not None and self._bound() is bound:
            return
        self._bound = None
        self._set_shapes(bound.shapes)
        for name, tensor in bound.tensors.items():
            address = tensor.data_ptr() or self._memory.data_ptr()  # without elements it still needs a valid one
            self._complaints.require(self._context.set_tensor_address(name, address), f"the address of {name}")
        missing = self._context.infer_shapes()
        self._complaints.require(not missing, ", ".join(missing))
        self._bound = weakref.ref(bound)

    def enqueue(self, handle: int) -> None:
        """Enqueue the bound pass on a stream.

        Raises:
            BackendError: The library, or the plugin in it, fails.
        """
        self._complaints.require(self._context.execute_async_v3(handle), f"a pass of {self._graph!r}")

    def is_capturable(self, handle: int) -> bool:
        """Whether the bound pass may be captured on a stream; TensorRT, which can't tell, lets one try."""
        ask = getattr(self._context, "is_stream_capturable", None)
        return ask is None or bool(ask(handle))

    def output_sizes(self, shapes: Mapping[str, Shape], outputs: Mapping[str, torch.dtype]) -> dict[str, int]:
        """Bytes of the outputs of a pass, by name.

        Args:
            shapes: Of every input.
            outputs: The outputs' types.
        """
        self._bound = None
        self._set_shapes(shapes)
        found = {name: torch.Size(tuple(self._context.get_tensor_shape(name))) for name in outputs}
        return {name: shape.numel() * outputs[name].itemsize for name, shape in found.items()}

    def _set_shapes(self, shapes: Mapping[str, Shape]) -> None:
        for name, shape in shapes.items():
            self._complaints.require(self._context.set_input_shape(name, shape), f"the shape of {name}")
