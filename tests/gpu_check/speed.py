"""What a pass costs by its nodes, what of that is not the GPU's work, and part `peer`: PyTorch's plain decoding."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from spec_trt.export.config import ExportConfig
from spec_trt.export.load import load_model
from spec_trt.export.source import locate
from spec_trt.runtime.engine import Engine
from spec_trt.runtime.generation import GenerationConfig
from spec_trt.runtime.tree import ROOT, TreeBuilder
from tests.gpu_check.report import Outcome
from tests.gpu_check.timing import event_ms, host_ms

NODES = (1, 2, 4, 8, 16, 32, 64)
PEER = "PyTorch, static cache, torch.compile"

Rate = Callable[[], float]
"""Tokens per second of plain decoding, once measured."""

_ROUNDS = 3


def time_engine(outcome: Outcome, title: str, engine: Engine, prompt: Sequence[int], *, tokens: int) -> None:
    """Costs of an engine's passes by their nodes, and its plain decoding.

    Args:
        outcome: Takes what is found.
        title: What tables call the engine.
        engine: The engine.
        prompt: What the passes stand behind.
        tokens: To generate for a rate.
    """
    table = outcome.table([f"{title}: nodes", "wall ms", "GPU ms", "gap ms", "c(n)/c(1)"])
    costs = pass_costs(engine, prompt)
    outcome.record("passes", costs)
    for nodes, row in costs.items():
        table.add([nodes, row["wall_ms"], row["gpu_ms"], row["wall_ms"] - row["gpu_ms"], row["of_one"]])
    _time_rate(outcome, title, lambda: plain_rate(engine, prompt, tokens))


def time_peer(outcome: Outcome, config: ExportConfig, prompt: Sequence[int], *, tokens: int) -> None:
    """Plain decoding by PyTorch alone; one that can't be compiled here is no failure of the check's subject."""
    try:
        _time_rate(outcome, PEER, torch_peer(config, prompt, tokens=tokens))
    except Exception as error:  # a compiler's errors are of any type
        outcome.note(f"{PEER}: {type(error).__name__}: {' '.join(str(error).split())[:200]}")


def _time_rate(outcome: Outcome, title: str, rate: Rate) -> None:
    rate()  # compiles, captures
    median = statistics.median(rate() for _ in range(_ROUNDS))
    outcome.record("plain_tokens_per_s", median)
    outcome.table(["plain decoding", "tok/s"]).add([title, median])


def pass_costs(engine: Engine, prompt: Sequence[int]) -> dict[int, dict[str, float]]:
    """Milliseconds of a verify pass behind a prompt, by its nodes: on the host's clock, and the GPU's share of it."""
    target, costs = engine.new_target(), {}
    target.prefill(prompt[:-1])
    for nodes in NODES:
        tree = chain(prompt[-1], nodes)
        for _ in range(3):
            target.verify([tree])
        [bound] = [bound for (size, _, _), bound in target._passes.kept.items() if size.project and size.nodes == nodes]
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
