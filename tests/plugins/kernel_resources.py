"""What the plugins' kernels take of every GPU they are compiled for, found with no GPU.

    python -m tests.plugins.kernel_resources [--all]

compiles them as `launch` would, and prints registers, shared memory and spills. Without `--all`: what the tests
compile, the tiles with the most registers.
"""

import multiprocessing
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import spec_trt.plugins.commit_rows.kernel as commit
import spec_trt.plugins.tree_attention.kernel as attention
from spec_trt.plugins.commit_rows.launch import commit_constants
from spec_trt.plugins.tree_attention.launch import LaunchPlan, attention_constants, combine_constants
from spec_trt.plugins.tree_attention.support import Attributes
from spec_trt.plugins.tree_attention.tile_sizes import tile_sizes
from spec_trt.plugins.triton_gpu import Gpu
from spec_trt.table import format_table

CAPABILITIES = (75, 80, 86, 89, 90, 100, 120)
HEAD_DIMS = (64, 80, 96, 128, 256)

# Bytes of shared memory that one program may have.
SHARED_LIMIT = {75: 64, 80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
ITEMSIZE = {"fp16": 2, "bf16": 2, "fp32": 4}
EVERYTHING = Attributes(scale=1.0, softcap=1.0, sliding_window=1)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One compilation; `rows` and `attributes` matter to the attention kernel alone."""

    kernel: str
    capability: int
    dtype: str = "fp16"
    head_dim: int = 128
    rows: int = 16
    attributes: Attributes = EVERYTHING
    splits: int = 2

    def constants(self) -> dict[str, Any]:
        if self.kernel == "combine":
            return combine_constants(self.head_dim)
        if self.kernel == "commit":
            return commit_constants(self.head_dim)
        sizes = tile_sizes(
            capability=self.capability,
            head_dim=self.head_dim,
            itemsize=ITEMSIZE[self.dtype],
            rows=self.rows,
        )
        gpu = Gpu(capability=self.capability, multiprocessors=1)
        plan = LaunchPlan(sizes=sizes, tiles=1, splits=self.splits)
        return attention_constants(self.head_dim, self.attributes, plan, gpu)


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What the assembler says: registers per thread, bytes of stack (spills) and of shared memory."""

    registers: int
    stack: int
    shared: int
    ptx: str


def chosen_variants() -> Iterator[Variant]:
    """Every size of tile on every GPU, every feature once, and the tiles that are closest to spilling."""
    for capability in CAPABILITIES:
        for head_dim in (64, 128, 256):
            for rows in (16, 128):
                yield Variant(kernel="attention", capability=capability, head_dim=head_dim, rows=rows)
            yield Variant(kernel="combine", capability=capability, head_dim=head_dim)
        yield Variant(kernel="commit", capability=capability)
    for dtype in ("fp16", "bf16"):
        for head_dim in (80, 96):
            yield Variant(kernel="attention", capability=100, dtype=dtype, head_dim=head_dim, rows=32)
    for head_dim in (64, 128, 256):
        yield Variant(kernel="attention", capability=100, dtype="bf16", head_dim=head_dim, rows=128)
    for capability, head_dim in ((80, 80), (100, 96), (120, 80)):
        yield Variant(kernel="attention", capability=capability, dtype="fp32", head_dim=head_dim, rows=32)
    yield Variant(kernel="attention", capability=89, head_dim=96, rows=64)
    yield Variant(kernel="attention", capability=89, dtype="bf16", rows=128)
    for head_dim in (128, 256):
        yield Variant(kernel="attention", capability=89, dtype="fp32", head_dim=head_dim, rows=128)
    yield Variant(kernel="attention", capability=89, attributes=Attributes(scale=1.0), splits=1)


def all_variants() -> Iterator[Variant]:
    """Every tile that a model could ask of a GPU, with all features at once."""
    for capability in CAPABILITIES:
        for dtype in ITEMSIZE:
            for head_dim in HEAD_DIMS:
                known: set[int] = set()
                for rows in (16, 32, 64, 128):
                    variant = Variant(
                        kernel="attention", capability=capability, dtype=dtype, head_dim=head_dim, rows=rows
                    )
                    block_rows = variant.constants()["block_rows"]
                    if block_rows not in known and (capability, dtype) != (75, "bf16"):
                        known.add(block_rows)
                        yield variant
        for head_dim in HEAD_DIMS:
            yield Variant(kernel="combine", capability=capability, head_dim=head_dim)
            yield Variant(kernel="commit", capability=capability, head_dim=head_dim)


def compile_variant(variant: Variant) -> Resources:
    """Compile one kernel to machine code, as the launch would on that GPU."""
    function = {
        "attention": attention.attention_kernel,
        "combine": attention.combine_kernel,
        "commit": commit.commit_kernel,
    }[variant.kernel]
    constants = variant.constants()
    options = {name: constants.pop(name) for name in list(constants) if name not in function.arg_names}
    signature, values, aligned = {}, {}, {}
    for index, name in enumerate(function.arg_names):
        if name in constants:
            signature[name], values[(index,)] = "constexpr", constants[name]
        else:
            signature[name] = _type(name, variant.dtype)
            parameter = function.params[index]
            if not parameter.do_not_specialize and not parameter.do_not_specialize_on_alignment:
                aligned[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(function, signature, values, aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", variant.capability, 32), options=options)
    registers, stack = _usage(compiled.asm["cubin"])
    return Resources(registers=registers, stack=stack, shared=compiled.metadata.shared, ptx=compiled.asm["ptx"])


def _type(name: str, dtype: str) -> str:
    if name in {"past_lens", "positions", "paths", "counts", "lengths"}:
        return "*i64"
    if name == "tree_mask":
        return "*u8"
    if name.startswith("partial_"):
        return "*fp32"
    if name in {"scale", "softcap"}:
        return "fp32"
    tensors = {"query", "key", "value", "past_key", "past_value", "out", "buffer", "new_rows"}
    return f"*{dtype}" if name in tensors else "i32"


def _usage(cubin: bytes) -> tuple[int, int]:
    """Registers and stack, from the binary itself."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+) STACK:(\d+)", done.stdout)
    assert found, done.stdout
    return int(found[1]), int(found[2])


def compile_all(variants: list[Variant]) -> list[Resources]:
    # Processes: parsing in several threads at once fails on Python 3.11 (gh-106905).
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(compile_variant, variants))


def table(variants: list[Variant], resources: list[Resources]) -> str:
    rows = []
    for variant, found in zip(variants, resources, strict=True):
        constants = variant.constants()
        tile = f"{constants['block_rows']} x {constants['block_keys']}" if variant.kernel == "attention" else "-"
        threads = 32 * constants["num_warps"]
        rows.append([
            f"{variant.capability // 10}.{variant.capability % 10}", variant.kernel, variant.dtype,
            str(variant.head_dim), tile, str(threads), str(found.registers), str(found.shared), str(found.stack),
        ])  # fmt: skip
    head = ["sm", "kernel", "dtype", "head_dim", "tile", "threads", "registers", "shared bytes", "spilled bytes"]
    return format_table(head, rows)


if __name__ == "__main__":
    chosen = list(all_variants() if "--all" in sys.argv[1:] else chosen_variants())
    print(table(chosen, compile_all(chosen)))
