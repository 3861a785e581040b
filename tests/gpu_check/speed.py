"""Part `speed`: what a pass costs by its nodes, what of that is not the GPU's work, and PyTorch's plain decoding."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from spec_trt.export.config import ExportConfig
from spec_trt.export.load import load_model
from spec_trt.export.source import locate
from spec_trt.runtime.engine import Engine, GenerationConfig
from spec_trt.runtime.tree import ROOT, TreeBuilder
from tests.gpu_check.report import Outcome
from tests.gpu_check.timing import event_ms, host_ms

NODES = (1, 2, 4, 8, 16, 32, 64)
PEER = "PyTorch, static cache, torch.compile"

Rate = Callable[[], float]
"""Tokens per second of plain decoding, once measured."""


def run_speed(
    engines: Mapping[str, Engine], peer: Rate | None, prompt: Sequence[int], *, tokens: int, rounds: int = 3
) -> Outcome:
    """Costs of passes, then plain decoding of all engines and the peer in turn.

    Args:
        engines: By name.
        peer: PyTorch's own rate; None where it is not wanted.
        prompt: What the passes stand behind.
        tokens: To generate for a rate.
        rounds: Rates of each, in turn; the median counts.
    """
    outcome = Outcome()
    for name, engine in engines.items():
        costs = pass_costs(engine, prompt)
        outcome.figures[name] = {"passes": costs}
        rows = [[nodes, row["wall_ms"], row["gpu_ms"], row["wall_ms"] - row["gpu_ms"], row["of_one"]]
                for nodes, row in costs.items()]  # fmt: skip
        outcome.add_table([f"{name}: nodes", "wall ms", "GPU ms", "gap ms", "c(n)/c(1)"], rows)
    rates: dict[str, Rate] = {
        name: lambda engine=engine: plain_rate(engine, prompt, tokens)  # type: ignore[misc]  # bound as it is now
        for name, engine in engines.items()
    }
    if peer is not None:
        rates[PEER] = peer
    _compare_rates(outcome, rates, rounds)
    return outcome


def _compare_rates(outcome: Outcome, rates: Mapping[str, Rate], rounds: int) -> None:
    samples: dict[str, list[float]] = {name: [] for name in rates}
    for name, rate in rates.items():
        try:
            rate()
        except Exception as error:  # a peer that can't be compiled here is no fault of ours
            outcome.notes.append(f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
            del samples[name]
    for _ in range(rounds):
        for name in samples:
            samples[name].append(rates[name]())
    medians = {name: statistics.median(values) for name, values in samples.items()}
    outcome.figures["plain_tokens_per_s"] = medians
    peer = medians.get(PEER)
    rows = [[name, rate, rate / peer if peer else None] for name, rate in medians.items()]
    outcome.add_table(["plain decoding", "tok/s", "over PyTorch's"], rows)


def pass_costs(engine: Engine, prompt: Sequence[int]) -> dict[int, dict[str, float]]:
    """Milliseconds of a verify pass behind a prompt, by its nodes: on the host's clock, and the GPU's share of it."""
    target, costs = engine._target, {}
    target.prefill(prompt[:-1])
    for nodes in NODES:
        tree = chain(prompt[-1], nodes)
        for _ in range(3):
            target.verify([tree])
        [bound] = [bound for size, bound in target._passes.items() if size.project and size.nodes == nodes]
        costs[nodes] = {
            "wall_ms": host_ms(lambda tree=tree: target.verify([tree]), repeats=20),  # type: ignore[misc]
            "gpu_ms": event_ms(bound.graph._binding.run, repeats=20),
        }
    return {nodes: row | {"of_one": row["wall_ms"] / costs[1]["wall_ms"]} for nodes, row in costs.items()}


def chain(root: int, nodes: int):
    """A tree of one path."""
    builder = TreeBuilder(root)
    builder.add_chain(ROOT, [3] * (nodes - 1))
    return builder.build()


def plain_rate(engine: Engine, prompt: Sequence[int], tokens: int) -> float:
    """Tokens per second of plain decoding, prefill excluded."""
    return engine.generate(prompt, GenerationConfig(max_new_tokens=tokens, ignore_eos=True)).stats.tokens_per_s


def torch_peer(config: ExportConfig, prompt: Sequence[int], *, tokens: int, device: str = "cuda") -> Rate:
    """transformers' own greedy decoding with a static cache, its forward compiled on a GPU.

    Args:
        config: The model; a copy of it is loaded, with PyTorch's own attention.
        prompt: Token ids.
        tokens: To generate for a rate.
        device: Where to run.
    """
    causal: Any = load_model(locate(config.model), config.dtype).model.to(device)
    causal.set_attn_implementation("sdpa")
    ids = torch.tensor([list(prompt)], device=device)

    def seconds(count: int) -> float:
        started = time.perf_counter()
        out = causal.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            min_new_tokens=count,
            max_new_tokens=count,
            do_sample=False,
            cache_implementation="static",
        )
        out.tolist()  # waits for the GPU
        return time.perf_counter() - started

    few = max(tokens // 8, 2)
    return lambda: (tokens - few) / (seconds(tokens) - seconds(few))
