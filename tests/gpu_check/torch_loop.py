"""Part `torch`: the whole loop over PyTorch's modules, their attention the Triton kernel."""

import torch
from torch import Tensor

from spec_trt.export.attention import AttentionCall
from spec_trt.plugins.tree_attention.launch import tree_attention
from spec_trt.runtime.engine import Engine
from tests.torch_session import TorchModel, fixed_shapes


def triton_attention(call: AttentionCall) -> Tensor:
    """`TreeAttention` by the plugin's kernel."""
    return tree_attention(
        call.query,
        call.key,
        call.value,
        call.past_key,
        call.past_value,
        call.past_lens,
        call.tree_mask,
        call.positions,
        scale=call.scale,
        softcap=call.softcap,
        sliding_window=call.sliding_window,
    )


def torch_engine(model: TorchModel, *, length: int, cuda_graphs: bool) -> Engine:
    """The engine that this part checks."""
    shapes = fixed_shapes(length=length, nodes=64, chunk=64)
    return model.engine(triton_attention, torch.device("cuda", 0), cuda_graphs=cuda_graphs, fixed=shapes)
