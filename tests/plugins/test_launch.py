"""What the kernels' host side refuses, where there is no GPU and no interpreter."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from spec_trt.errors import BackendError
from spec_trt.plugins.kernel_tensor import DeviceTensor
from spec_trt.plugins.tree_attention.launch import Operands, plan_launch, tree_attention
from spec_trt.plugins.triton_gpu import Gpu, import_kernel, start_kernel
from tests.plugins.operands import VARIANTS, inputs_of, make_operands


def operands(dtype: torch.dtype = torch.float16, *, heads: int = 8, head_dim: int = 64) -> Operands:
    """Shapes alone, at no address."""

    def tensor(*shape: int, dtype: torch.dtype = dtype) -> DeviceTensor:
        return DeviceTensor(address=0, dtype=dtype, shape=shape)

    return Operands(
        query=tensor(2, heads, 4, head_dim),
        key=tensor(2, 4, 4, head_dim),
        value=tensor(2, 4, 4, head_dim),
        past_key=tensor(2, 4, 64, head_dim),
        past_value=tensor(2, 4, 64, head_dim),
        past_lens=tensor(2, dtype=torch.int64),
        tree_mask=tensor(2, 4, 8, dtype=torch.uint8),
    )


@pytest.mark.parametrize(
    ("given", "capability", "reason"),
    [
        (operands(torch.float64), 90, "takes fp16, bf16, fp32, found torch.float64"),
        (operands(torch.bfloat16), 75, "needs compute capability 8.0 for bf16, found 7.5"),
        (operands(), 70, "needs compute capability 7.5, found 7.0"),
        (operands(heads=6), 90, "query heads that are a multiple of the key heads, found 6 and 4"),
        (operands(head_dim=4), 90, "a head_dim that is a multiple of 8 up to 256, found 4"),
    ],
    ids=["float64", "bf16 on 7.5", "7.0", "heads", "head_dim"],
)
def test_what_the_kernel_cannot_do_is_refused_by_name(given: Operands, capability: int, reason: str):
    with pytest.raises(BackendError, match=reason):
        plan_launch(given, Gpu(capability=capability, multiprocessors=100))


def test_tensors_on_the_host_are_refused():
    tensors = {name: torch.from_numpy(one) for name, one in make_operands(0, 1, 1, 1, 2, 0, 4).items()}
    with pytest.raises(BackendError, match="need an NVIDIA GPU, found cpu"):
        tree_attention(**inputs_of(tensors, VARIANTS["plain"]), scale=1.0)


def test_a_missing_triton_names_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(BackendError, match=r"pip install 'spec-trt\[trt\]'` or `'spec-trt\[trt-rtx\]'"):
        import_kernel("triton")


def test_kernels_start_in_one_thread_at_a_time():
    """To start one may be to compile it, which Python 3.11 can't do in two."""
    inside, most = 0, 0

    class Kernel:
        def __getitem__(self, grid):
            assert grid == (2, 3)
            return self.run

        def run(self, operand, *, constant):
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            time.sleep(0.02)
            inside -= 1
            assert (operand, constant) == (4, 5)

    with ThreadPoolExecutor(4) as pool:
        for started in [pool.submit(start_kernel, Kernel(), (2, 3), [4], {"constant": 5}) for _ in range(4)]:
            started.result()
    assert most == 1


@pytest.mark.parametrize("module", ["spec_trt.plugins.tree_attention", "spec_trt.plugins.tree_attention.plugin"])
def test_what_a_builder_imports_is_light(module: str):
    program = f"import sys, {module}; print([one for one in ('torch', 'triton', 'tensorrt_rtx') if one in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_device_tensor_is_contiguous():
    tensor = DeviceTensor(address=16, dtype=torch.float16, shape=(2, 3, 4, 8))
    assert [tensor.stride(axis) for axis in range(4)] == [96, 32, 8, 1]
    assert (tensor.stride(-1), tensor.stride(-2)) == (1, 8)
    assert (tensor.data_ptr(), tensor.nbytes) == (16, 2 * 3 * 4 * 8 * 2)
