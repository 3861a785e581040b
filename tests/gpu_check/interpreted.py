"""The part `torch` in Triton's interpreter, on a tiny model: `test_interpreted_loop.py` runs this file.

The loop, its cache and the modules are the GPU's own but for CUDA graphs: the attention is the kernel, and accepted
rows are written by the kernel.
"""

import pytest
import torch

from spec_trt.export.config import ExportConfig
from spec_trt.export.torch_reference import reference
from spec_trt.runtime.generation import GenerationConfig
from spec_trt.runtime.gpu_rows import GpuRowWriter
from spec_trt.runtime.kv_cache import KVCache
from tests.families import make_model, save_model
from tests.gpu_check.torch_loop import triton_attention
from tests.heads.checkpoints import write_eagle, write_medusa_v2
from tests.torch_session import TorchModel, fixed_shapes

CPU = torch.device("cpu")
PROMPT = [70, 71, 72, 70]
SHAPES = fixed_shapes(length=32, nodes=8, chunk=8)


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    root = tmp_path_factory.mktemp("torch")
    write_medusa_v2(root / "medusa", heads=4)
    write_eagle(root / "eagle")
    model = save_model(make_model("llama", num_hidden_layers=1), root / "model")
    config = ExportConfig(
        model=str(model), output=root / "out", medusa=root / "medusa", eagle=root / "eagle", check=False
    )
    loaded = TorchModel(config)
    kernel = loaded.engine(triton_attention, CPU, fixed=SHAPES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KVCache, "__init__", with_kernel(KVCache.__init__))
        yield loaded.engine(reference, CPU), kernel


def with_kernel(init):
    """A cache's `__init__`, its accepted rows written by the kernel as on a GPU where their number is fixed."""

    def made(cache, *arguments, **given):
        init(cache, *arguments, **given)
        if given["capacity"] is not None:
            cache._writer = GpuRowWriter(CPU)

    return made


METHODS = {
    "medusa": {"nodes": 5},
    "eagle2": {"depth": 2, "top_k": 2, "total_tokens": 5, "node_probability": 0, "level_probability": 0},
}


@pytest.mark.parametrize("method", METHODS)
def test_the_kernels_tokens_are_plain_decodings(engines, method):
    expected, kernel = engines
    config = GenerationConfig(method=method, options=METHODS[method], max_new_tokens=3, ignore_eos=True)
    plain = GenerationConfig(max_new_tokens=3, ignore_eos=True)
    assert kernel.generate(PROMPT, config).token_ids == expected.generate(PROMPT, plain).token_ids
