"""The plugin at run time: TensorRT's addresses, workspace and stream made into a launch."""

import math
from collections.abc import Mapping

import torch

from spec_trt.plugins.kernel_tensor import DeviceTensor
from spec_trt.plugins.tree_attention.launch import Operands, launch, plan_launch
from spec_trt.plugins.tree_attention.support import Attributes
from spec_trt.plugins.triton_gpu import find_gpu

__all__ = ["TORCH_DTYPES", "enqueue"]

TORCH_DTYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "int64": torch.int64,
    "bool": torch.uint8,  # a byte per element in both libraries; Triton reads bytes
}


def enqueue(
    tensors: Mapping[str, tuple[int, str, tuple[int, ...]]],
    out: int,
    workspace: int,
    stream: int,
    attributes: Attributes,
) -> None:
    """Start the kernels on TensorRT's stream.

    Nothing here allocates on the GPU or waits for it, so TensorRT's work can be captured in a CUDA graph, and then
    none of this runs again. Shapes that are new compile, which a capture does not allow: run once before it.

    Args:
        tensors: By input name: address, type (a key of `TORCH_DTYPES`) and shape; all contiguous.
        out: The output's address; it has the query's shape and type.
        workspace: The address of at least `tile_sizes.workspace_bytes` for these shapes.
        stream: The CUDA stream's handle.
        attributes: The node's.

    Raises:
        BackendError: As for `launch`.
    """
    operands = Operands(
        **{
            name: DeviceTensor(address=address, dtype=TORCH_DTYPES[dtype], shape=shape)
            for name, (address, dtype, shape) in tensors.items()
        }
    )
    gpu = find_gpu()
    plan = plan_launch(operands, gpu)
    query = operands.query
    rows = plan.splits * math.prod(query.shape[:3])
    partial_out = DeviceTensor(address=workspace, dtype=torch.float32, shape=(rows, query.shape[3]))
    partial_peak = DeviceTensor(address=workspace + partial_out.nbytes, dtype=torch.float32, shape=(rows, 2))
    result = DeviceTensor(address=out, dtype=query.dtype, shape=tuple(query.shape))
    with torch.cuda.stream(torch.cuda.ExternalStream(stream)):  # type: ignore[no-untyped-call]
        launch(operands, result, (partial_out, partial_peak), attributes=attributes, plan=plan, gpu=gpu)
