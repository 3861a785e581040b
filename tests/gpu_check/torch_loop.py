"""Part `torch`: the whole loop over PyTorch's modules, their attention the Triton kernel."""

from collections.abc import Sequence

import torch
from torch import Tensor

from spec_trt.export.attention import AttentionCall
from spec_trt.plugins.tree_attention.launch import tree_attention
from tests.gpu_check.lossless import SAMPLED, report_methods, run_methods
from tests.gpu_check.report import Outcome
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


def run_torch_loop(model: TorchModel, prompts: Sequence[Sequence[int]], *, tokens: int, length: int) -> Outcome:
    """Check losslessness of every method with CUDA graphs and without, and time it.

    Args:
        model: The model and its heads.
        prompts: As token ids.
        tokens: To generate for each.
        length: Rows of the cache.
    """
    outcome = Outcome()
    for cuda_graphs in (True, False):
        engine = torch_engine(model, length=length, cuda_graphs=cuda_graphs)
        title = f"PyTorch, Triton attention, CUDA graphs {'on' if cuda_graphs else 'off'}"
        few = prompts if cuda_graphs else prompts[:2]  # launched one by one, a pass takes many times as long
        report_methods(outcome, title, run_methods(engine, few, tokens=tokens))
        if cuda_graphs:
            sampled = run_methods(engine, prompts[:2], tokens=tokens, sampling=SAMPLED)
            report_methods(outcome, f"{title}, sampled", sampled)
    return outcome


def torch_engine(model: TorchModel, *, length: int, cuda_graphs: bool):
    """The engine that this part checks."""
    shapes = fixed_shapes(length=length, nodes=64, chunk=64)
    return model.engine(triton_attention, torch.device("cuda", 0), cuda_graphs=cuda_graphs, fixed=shapes)
