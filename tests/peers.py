"""Plain decoding of one GGUF file, this project beside its peers: `python -m tests.peers --help`.

Not a test: a benchmark to run by hand. Each engine lives in a process of its own; all answer the same
prompts, given as the same token ids, in turn, greedily and past end-of-sequence, with the same number of
threads. The rate is that between the first token and the last, so prefill is in none of the figures.

Peers are run if they are installed: `pip install openvino-genai llama-cpp-python` (a source build of the
latter with the CPU's own instructions, see its CMAKE_ARGS, is the fair one).
"""

import argparse
import importlib.util
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spec_trt.prompts import load_prompts

if TYPE_CHECKING:
    from spec_trt.manifest import ModelFacts
    from spec_trt.runtime.session import Binding, Session

Generate = Callable[[list[int], int], list[float]]
"""Takes prompt token ids and a token count; gives the time at which every token came."""


def spec_trt(path: str, threads: int) -> dict[str, Generate]:
    """An engine, and its graph in a bare loop on the same session: what plain decoding can't be faster than."""
    from spec_trt.manifest import load_manifest
    from spec_trt.profile.cost_curve import in_a_thread
    from spec_trt.runtime.engine import Engine
    from spec_trt.runtime.generation import GenerationConfig
    from spec_trt.runtime.ort_session import OrtSession
    from spec_trt.runtime.target import Target

    directory = Path(path)
    manifest = load_manifest(directory)
    session = OrtSession(directory / manifest.graphs["base"].file, threads=threads)
    engine = Engine(
        manifest,
        directory,
        lambda batch, cache_bytes: Target(session, manifest.model, batch=batch, cache_bytes=cache_bytes),
    )

    def generate(prompt: list[int], count: int) -> list[float]:
        config = GenerationConfig(max_new_tokens=count, ignore_eos=True)
        return [time.perf_counter() for emission in engine.stream(prompt, config) for _ in emission.token_ids]

    def run_raw(prompt: list[int], count: int) -> list[float]:
        times = []

        def run() -> None:
            for bound in _raw_passes(session, manifest.model, len(prompt) - 1, count):
                bound.run()
                times.append(time.perf_counter())

        in_a_thread(run)  # as the engine has one
        return times

    return {"engine": generate, "raw session": run_raw}


def _raw_passes(session: "Session", facts: "ModelFacts", rows: int, count: int) -> "list[Binding]":
    """Single-node passes behind a cache that grows as the engine's does, bound once for each of its sizes.

    Nothing is read or written between them, so that every pass checks the same token.
    """
    import torch

    from spec_trt import names
    from spec_trt.runtime.kv_cache import KVCache

    cache = KVCache(facts)
    cache.reset(0, rows=rows)
    bound: dict[int, Binding] = {}
    passes = []
    for committed in range(rows, rows + count):
        cache.reserve(committed)
        if cache.capacity not in bound:
            cache.buffer.fill_(0.01)
            position = torch.tensor([committed])
            inputs = {
                names.INPUT_IDS: torch.zeros(1, 1, dtype=torch.int64),
                names.POSITION_IDS: position[None],
                names.PAST_LENS: position,
                names.TREE_MASK: torch.ones(1, 1, 1, dtype=torch.bool),
                names.LOGITS_ROWS: torch.zeros(1, 1, dtype=torch.int64),
            }
            outputs = {names.ARGMAX: torch.zeros(1, 1, dtype=torch.int64)}
            new_rows = cache.new_row_views(cache.new_rows(1, 1))
            bound[cache.capacity] = session.bind(inputs | cache.views(), outputs | new_rows)
        passes.append(bound[cache.capacity])
    return passes


def openvino_genai(path: str, threads: int) -> dict[str, Generate]:
    import numpy as np
    import openvino
    import openvino_genai

    pipeline = openvino_genai.LLMPipeline(path, "CPU", INFERENCE_NUM_THREADS=threads)

    class Clock(openvino_genai.StreamerBase):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.times: list[float] = []

        def write(self, token: int | list[int]) -> Any:
            self.times += [time.perf_counter()] * (len(token) if isinstance(token, list) else 1)
            return openvino_genai.StreamingStatus.RUNNING

        def end(self) -> None:
            pass

    def generate(prompt: list[int], count: int) -> list[float]:
        clock = Clock()
        config = openvino_genai.GenerationConfig(max_new_tokens=count, do_sample=False, ignore_eos=True)
        pipeline.generate(openvino.Tensor(np.array([prompt])), config, clock)
        return clock.times

    return {"engine": generate}


def llama_cpp(path: str, threads: int) -> dict[str, Generate]:
    import llama_cpp

    model = llama_cpp.Llama(path, n_ctx=2048, n_threads=threads, n_threads_batch=threads, verbose=False)

    def generate(prompt: list[int], count: int) -> list[float]:
        times = []
        for _ in model.generate(prompt, temp=0.0, repeat_penalty=1.0):
            times.append(time.perf_counter())
            if len(times) == count:
                return times
        return times

    return {"engine": generate}


def transformers_generate(path: str, threads: int) -> dict[str, Generate]:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    gguf = Path(path)
    model = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32).eval()

    class Clock:
        def __init__(self) -> None:
            self.times: list[float] = []

        def put(self, _value: torch.Tensor) -> None:
            self.times.append(time.perf_counter())

        def end(self) -> None:
            pass

    def generate(prompt: list[int], count: int) -> list[float]:
        clock = Clock()
        ids = torch.tensor([prompt])
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            streamer=clock,
        )
        return clock.times[1:]  # the prompt is put first

    return {"engine": generate}


Make = Callable[[str, int], dict[str, Generate]]
"""Takes a model's path and a thread count; gives what is to be timed, by name."""

PEERS: dict[str, tuple[Make, str]] = {
    "openvino-genai": (openvino_genai, "openvino_genai"),
    "llama.cpp": (llama_cpp, "llama_cpp"),
    "transformers": (transformers_generate, "transformers"),
}


class Worker:
    """An engine in a process of its own."""

    def __init__(self, make: Make, path: str, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        context.Process(target=_serve, args=(make, path, threads, theirs), daemon=True).start()

    def ms_per_token(self, run: str, prompt: list[int], count: int) -> float:
        self._connection.send((run, prompt, count))
        times = self._connection.recv()
        if isinstance(times, str):
            sys.exit(times)
        return float(1e3 * (times[-1] - times[0]) / (len(times) - 1))


def _serve(make: Make, path: str, threads: int, connection: Connection) -> None:
    try:
        runs = make(path, threads)
        while True:
            run, prompt, count = connection.recv()
            connection.send(runs[run](prompt, count))
    except EOFError:
        pass
    except Exception as error:
        connection.send(f"{make.__name__}: {type(error).__name__}: {error}")
        raise


def _encode(engine: str, prompts: Path, per_category: int) -> list[list[int]]:
    from spec_trt.tokenizer import Tokenizer

    tokenizer = Tokenizer(Path(engine))
    records = load_prompts(prompts, per_category=per_category)
    return [tokenizer.encode_chat([{"role": "user", "content": record.turns[0]}]) for record in records]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("engines", nargs="+", help="engine directories of the same model, e.g. int8 and fp32")
    parser.add_argument("--gguf", required=True, help="the GGUF file")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--per-category", type=int, default=1)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", default=",".join(PEERS))
    args = parser.parse_args()
    peers = [name for name in args.peers.split(",") if name]
    if unknown := set(peers) - set(PEERS):
        parser.error(f"no peer {', '.join(sorted(unknown))}: expected some of {','.join(PEERS)}")

    timed: dict[str, tuple[Worker, str]] = {}
    for path in args.engines:
        name, worker = f"spec-trt {Path(path).name}", Worker(spec_trt, path, args.threads)
        timed |= {name: (worker, "engine"), f"{name}'s raw session": (worker, "raw session")}
    for name in peers:
        make, package = PEERS[name]
        if importlib.util.find_spec(package):
            timed[name] = Worker(make, args.gguf, args.threads), "engine"
        else:
            print(f"{name}: not installed, left out", file=sys.stderr)
    prompts = _encode(args.engines[0], args.prompts, args.per_category)
    for worker, run in timed.values():
        worker.ms_per_token(run, prompts[0], 8)
    samples: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(args.rounds):
        for prompt in prompts:
            for name, (worker, run) in timed.items():
                samples[name].append(worker.ms_per_token(run, prompt, args.max_new_tokens))
    first = next(iter(samples.values()))
    figures = {
        name: {
            "ms_per_token": statistics.median(times),
            "first_is_faster_by": statistics.median(b / a for a, b in zip(first, times, strict=True)),
        }
        for name, times in samples.items()
    }
    for path in args.engines:
        name = f"spec-trt {Path(path).name}"
        pairs = zip(samples[name], samples[f"{name}'s raw session"], strict=True)
        figures[name]["share_of_raw_rate"] = statistics.median(raw / own for own, raw in pairs)
    print(
        json.dumps(
            {"prompts": len(prompts), "rounds": args.rounds, "threads": args.threads, "engines": figures},
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
