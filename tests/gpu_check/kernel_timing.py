"""The attention kernel's time beside its peers' on the same operands, and beside what a copy would take."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from spec_trt.plugins.tree_attention.launch import tree_attention
from tests.gpu_check.report import Outcome
from tests.gpu_check.timing import copy_bandwidth, graph_ms, sets_needed

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
PASTS, NODES, BATCHES = (512, 4096, 32768), (1, 8, 32, 64), (1, 8)
PEERS = {"sdpa_ms": "SDPA, grouped", "sdpa_repeated_ms": "SDPA, keys repeated", "flex_ms": "FlexAttention"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One size that is timed."""

    past: int
    nodes: int
    batch: int

    @property
    def nbytes(self) -> int:
        """What must be moved in half precision: keys and values once, queries and outputs."""
        keys = 2 * self.batch * KV_HEADS * (self.past + self.nodes) * HEAD_DIM
        return 2 * (keys + 2 * self.batch * HEADS * self.nodes * HEAD_DIM)


def cases() -> Iterator[Case]:
    """The sizes of the check, the cheap ones first."""
    for past in PASTS:
        for batch in BATCHES:
            for nodes in NODES:
                yield Case(past=past, nodes=nodes, batch=batch)


class CaseOperands:
    """One set of operands, as the kernel and as its peers take them: keys of buffer and pass side by side."""

    def __init__(self, case: Case, seed: int, device: torch.device, dtype: torch.dtype) -> None:
        generator = torch.Generator(device).manual_seed(seed)

        def draw(heads: int, count: int) -> Tensor:
            return torch.randn(case.batch, heads, count, HEAD_DIM, generator=generator, device=device, dtype=dtype)

        self.case = case
        self.query = draw(HEADS, case.nodes)
        self.keys, self.values = draw(KV_HEADS, case.past + case.nodes), draw(KV_HEADS, case.past + case.nodes)
        self.past_lens = torch.full((case.batch,), case.past, device=device)
        tree = torch.rand(case.batch, case.nodes, case.nodes, generator=generator, device=device) < 0.5
        self.tree_mask = tree | torch.eye(case.nodes, dtype=torch.bool, device=device)
        seen = torch.ones(case.batch, case.nodes, case.past, dtype=torch.bool, device=device)
        self.mask = torch.cat([seen, self.tree_mask], dim=2)[:, None]

    def run_kernel(self) -> Tensor:
        past = self.case.past
        return tree_attention(
            self.query,
            self.keys[:, :, past:],
            self.values[:, :, past:],
            self.keys[:, :, :past],
            self.values[:, :, :past],
            self.past_lens,
            self.tree_mask,
            scale=HEAD_DIM**-0.5,
        )

    def run_sdpa(self, keys: Tensor | None = None, values: Tensor | None = None) -> Tensor:
        grouped = keys is None or values is None
        return scaled_dot_product_attention(
            self.query,
            self.keys if keys is None else keys,
            self.values if values is None else values,
            attn_mask=self.mask,
            enable_gqa=grouped,
        )

    def repeated(self) -> tuple[Tensor, Tensor]:
        group = HEADS // KV_HEADS
        return self.keys.repeat_interleave(group, dim=1), self.values.repeat_interleave(group, dim=1)


def flex_runner(first: CaseOperands, attention: Callable[..., Any]) -> Callable[[CaseOperands], Tensor]:
    """FlexAttention of any set of a case, with the first one's mask; `attention` may be compiled."""
    from torch.nn.attention.flex_attention import create_block_mask

    case, tree_mask = first.case, first.tree_mask

    def visible(batch: Tensor, _head: Tensor, node: Tensor, key: Tensor) -> Tensor:
        return (key < case.past) | tree_mask[batch, node, (key - case.past).clamp(min=0)]

    length, device = case.past + case.nodes, str(tree_mask.device)
    block_mask = create_block_mask(visible, case.batch, None, case.nodes, length, device=device)

    def run(operands: CaseOperands) -> Tensor:
        out: Tensor = attention(operands.query, operands.keys, operands.values, block_mask=block_mask, enable_gqa=True)
        return out

    return run


def time_kernel(outcome: Outcome, stop: float) -> None:
    """Time every case; compiling FlexAttention takes half of the time at the most.

    Args:
        outcome: Takes what is found.
        stop: The time, by `time.monotonic`, from which on nothing more is begun.
    """
    bandwidth, timings = copy_bandwidth(), list[dict[str, Any]]()
    outcome.record("copy_bytes_per_s", bandwidth)
    outcome.record("timings", timings)
    outcome.note(
        f"the peers' columns are their time over the kernel's; a copy moves {bandwidth / 1e9:,.0f} GB/s; the peers' "
        "keys lie side by side and, for SDPA's second column, are repeated per head, before the clock runs"
    )
    table = outcome.table(["past/nodes/batch", "kernel ms", "of copy bandwidth", *PEERS.values()])
    flex_stop = time.monotonic() + (stop - time.monotonic()) / 2
    for case in cases():
        if time.monotonic() > stop:
            outcome.note(f"no time for {case} and larger ones")
            break
        figures = _time_case(case, with_flex=time.monotonic() < flex_stop)
        kernel_ms = figures["kernel_ms"]
        figures["of_copy_bandwidth"] = case.nbytes / (kernel_ms / 1e3) / bandwidth
        timings.append({"past": case.past, "nodes": case.nodes, "batch": case.batch, **figures})
        ratios = [figures[peer] and figures[peer] / kernel_ms for peer in PEERS]
        table.add([f"{case.past}/{case.nodes}/{case.batch}", kernel_ms, figures["of_copy_bandwidth"], *ratios])


def _time_case(case: Case, *, with_flex: bool) -> dict[str, Any]:
    """Milliseconds of the kernel and its peers, in bf16 where the GPU has it."""
    cache = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 64 << 20)
    dtype = torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    count, device = sets_needed(case.nbytes, cache), torch.device("cuda")
    sets = [CaseOperands(case, seed, device, dtype) for seed in range(count)]
    figures: dict[str, Any] = {"kernel_ms": graph_ms([operands.run_kernel for operands in sets])}
    figures["sdpa_ms"] = peer_ms(lambda: [operands.run_sdpa for operands in sets])
    figures["sdpa_repeated_ms"] = peer_ms(
        lambda: [partial(operands.run_sdpa, *operands.repeated()) for operands in sets]
    )
    figures["flex_ms"] = peer_ms(lambda: _flex_works(sets)) if with_flex else None
    return figures


def _flex_works(sets: Sequence[CaseOperands]) -> list[Callable[[], object]]:
    """FlexAttention compiled for these sizes; nothing where it can't be."""
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.reset()
    try:
        run = flex_runner(sets[0], torch.compile(flex_attention, dynamic=False))
        run(sets[0])
    except Exception:  # a compiler's errors are of any type
        return []
    return [partial(run, operands) for operands in sets]


def peer_ms(works: Callable[[], Sequence[Callable[[], object]]]) -> float | None:
    """A peer's time; None where it can't run this at all, or its operands, larger than the kernel's, have no room."""
    try:
        made = works()
        return graph_ms(made) if made else None
    except (RuntimeError, ValueError):
        return None
