"""What only a machine with an NVIDIA GPU can check: `python -m tests.gpu_check --model PATH --json OUT.json`.

It says what it found (PyTorch, Triton, tensorrt, tensorrt-rtx, onnxruntime-gpu), runs what that allows, each part
within its share of --seconds, and ends with a table and a JSON file. A part that can't run is skipped by name.

  kernels   the Triton kernels against the NumPy reference; their time beside SDPA's and FlexAttention's, and as a
            share of the bandwidth of a copy
  torch     every method over PyTorch's own modules, their attention the Triton kernel, is plain decoding: needs no
            TensorRT
  engines   builds TensorRT engines for this GPU with either attention; their logits beside ONNX Runtime's on the CPU
  lossless  every method through those engines is plain decoding, with CUDA graphs on and off, greedy and sampled; the
            same through ONNX Runtime where it has CUDA
  speed     what a pass costs by its nodes, launch gaps, plain decoding beside PyTorch's (static cache, torch.compile)

The machine needs no network, but Python with a CUDA build of PyTorch, Triton, and what `pip install -e '.[dev]'` brings
(transformers 5.24 or later, onnx-ir, onnxscript, click, tqdm, pytest, hypothesis); it runs from a checkout's root,
installed or not. Prepare, where there is a network, and carry as files:

  the model      --model: a directory or a .gguf file (then with the `gguf` package). For less than 64 MiB a piece:
                 `xz -T0 -9 -k FILE; split -b 60M FILE.xz FILE.part-`, and there `cat FILE.part-* | xz -d > FILE`.
                 Without one the check runs on random weights of SmolLM2-135M's shape, which it makes itself.
  its heads      --medusa and --eagle; those of the demo are in the package.
  libraries      wheels: `pip download --no-deps -d WHEELS tensorrt-rtx-cu13 tensorrt-rtx-cu13-bindings
                 tensorrt-rtx-cu13-libs polygraphy transformers onnxruntime`, and there `pip install --no-index
                 --no-deps WHEELS/*.whl`, or `--target DIR` and PYTHONPATH=DIR. libtensorrt_rtx.so.1 is the large one:
                 unpack its wheel and split the file as above.
  (optional)     --bundle: what `spec-trt export MODEL BUNDLE --dtype fp16` wrote, and --ort-engine: an fp32 engine for
                 ONNX Runtime. They spare the minutes that exporting takes; what is missing is made.

Exit code: 0 where everything that ran holds, 1 where something does not, 2 where nothing could run.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from spec_trt.errors import SpecTrtError
from spec_trt.export.config import DTYPES
from spec_trt.tensorrt import TENSORRT_BACKENDS
from tests.gpu_check.found import CUDA_PROVIDER, PARTS, Found, find, skip_reason
from tests.gpu_check.report import Outcome, PartResult, exit_code, run_part, summary, write_json

if TYPE_CHECKING:
    from spec_trt.runtime.engine import Engine
    from tests.gpu_check.subject import Subject
    from tests.torch_session import TorchModel

KERNEL_SHARE = 0.35


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="random", help="directory, .gguf file or `random`  [default: random]")
    parser.add_argument("--medusa", type=Path, help="Medusa heads  [default: the demo's, for its model]")
    parser.add_argument("--eagle", type=Path, help="an EAGLE head  [default: the demo's, for its model]")
    parser.add_argument("--dtype", choices=DTYPES[1:], default="fp16", help="of the model  [default: fp16]")
    parser.add_argument("--parts", type=_parts, default=list(PARTS), help=f"[default: {','.join(PARTS)}]")
    parser.add_argument("--backend", choices=list(TENSORRT_BACKENDS), help="[default: the first library found]")
    parser.add_argument("--bundle", type=Path, help="exported in --dtype  [default: made in --work]")
    parser.add_argument("--ort-engine", type=Path, help="of ONNX Runtime in fp32  [default: made in --work]")
    parser.add_argument("--work", type=Path, help="where files are made  [default: a temporary directory]")
    parser.add_argument("--json", type=Path, default=Path("gpu_check.json"), help="[default: %(default)s]")
    parser.add_argument("--tokens", type=int, default=96, help="generated for each prompt  [default: %(default)s]")
    parser.add_argument("--length", type=int, default=2048, help="rows of the caches  [default: %(default)s]")
    parser.add_argument(
        "--past", type=int, default=256, help="tokens that timed passes stand behind  [default: %(default)s]"
    )
    parser.add_argument("--seconds", type=float, default=450, help="for all parts  [default: %(default)s]")
    return parser.parse_args(arguments)


def _parts(text: str) -> list[str]:
    asked = text.split(",")
    unknown = [part for part in asked if part not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no part {unknown[0]!r}: expected some of {','.join(PARTS)}")
    return [part for part in PARTS if part in asked]


def choose_backend(asked: str | None, found: Found) -> str | None:
    """The TensorRT back end to check: a process can use only one of the two libraries."""
    if asked is not None:
        return asked if asked in found.tensorrt else None
    return found.tensorrt[0] if found.tensorrt else None


@dataclass(kw_only=True)
class Check:
    """One run of the command; what several parts need is made once, by the first of them."""

    options: argparse.Namespace
    found: Found
    work: Path
    backend: str | None
    engines: dict[str, Path] = field(default_factory=dict)
    deadline: float = field(default=0.0)

    @property
    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()

    @property
    def ort_engine(self) -> Path:
        """Where ONNX Runtime's engine is, or will be made."""
        given: Path | None = self.options.ort_engine
        return given or self.work / "engine-ort"

    @cached_property
    def subject(self) -> "Subject":
        from tests.gpu_check.subject import choose_subject

        given = self.options
        return choose_subject(given.model, medusa=given.medusa, eagle=given.eagle, dtype=given.dtype, work=self.work)

    @cached_property
    def prompts(self) -> list[list[int]]:
        from tests.gpu_check.subject import encoded_prompts

        return encoded_prompts(self.model.loaded.tokenizer)

    @cached_property
    def model(self) -> "TorchModel":
        from tests.torch_session import TorchModel

        return TorchModel(self.subject.config)

    def kernels(self) -> Outcome:
        from tests.gpu_check.kernels import run_kernels

        return run_kernels(seconds=min(KERNEL_SHARE * self.options.seconds, self.seconds_left))

    def build(self) -> Outcome:
        from spec_trt.runtime.engine import Engine
        from tests.gpu_check.engines import ATTENTIONS, make_bundle, make_reference, run_engines

        assert self.backend is not None
        bundle = make_bundle(self.subject, self.options.bundle or self.work / f"bundle-{self.options.dtype}")
        reference = Engine.load(make_reference(self.subject, self.ort_engine, self.work))
        self.engines = {attention: self.work / f"engine-{attention}" for attention in ATTENTIONS}
        return run_engines(
            self.backend, bundle, reference, self.prompts, engines=self.engines, length=self.options.length
        )

    def lossless(self) -> Outcome:
        from tests.gpu_check.engines import run_lossless

        return run_lossless(self._loaders(), self.prompts, tokens=self.options.tokens)

    def _loaders(self) -> "dict[str, Callable[[], Engine]]":
        """Every engine that runs on the GPU here, by what tables call it."""
        from spec_trt.runtime.engine import Engine
        from tests.gpu_check.engines import make_reference

        loaders: dict[str, Callable[[], Engine]] = {}
        for attention, path in self.engines.items():
            for switch, cuda_graphs in (("on", True), ("off", False)):
                title = f"{self.backend}, {attention}, CUDA graphs {switch}"
                loaders[title] = partial(Engine.load, path, cuda_graphs=cuda_graphs)
        if CUDA_PROVIDER in self.found.providers:
            path = make_reference(self.subject, self.ort_engine, self.work)
            loaders["ONNX Runtime, CUDA, fp32"] = partial(Engine.load, path, device="cuda")
        return loaders

    def torch(self) -> Outcome:
        from tests.gpu_check.torch_loop import run_torch_loop

        return run_torch_loop(self.model, self.prompts, tokens=self.options.tokens, length=self.options.length)

    def speed(self) -> Outcome:
        from tests.gpu_check.speed import run_speed, torch_peer
        from tests.gpu_check.subject import long_prompt

        prompt = long_prompt(self.prompts, self.options.past)
        engines = self._timed_engines()
        peer = torch_peer(self.subject.config, prompt, tokens=self.options.tokens)
        return run_speed(engines, peer, prompt, tokens=self.options.tokens)

    def _timed_engines(self) -> "dict[str, Engine]":
        from spec_trt.runtime.engine import Engine

        engines = {f"{self.backend}, {name}": Engine.load(path) for name, path in self.engines.items()}
        if "triton" in self.found.versions:
            from tests.gpu_check.torch_loop import torch_engine

            engines["PyTorch, Triton attention"] = torch_engine(
                self.model, length=self.options.length, cuda_graphs=True
            )
        return engines

    def run(self, part: str) -> PartResult:
        """Run one part, unless it can't be run or there is no time for it."""
        work: dict[str, Callable[[], Outcome]] = {
            "kernels": self.kernels,
            "engines": self.build,
            "lossless": self.lossless,
            "torch": self.torch,
            "speed": self.speed,
        }
        skipped = skip_reason(part, self.found, backend=self.backend, engines=bool(self.engines))
        if skipped is None and self.seconds_left <= 0:
            skipped = f"the {self.options.seconds:.0f} seconds of --seconds are over"
        return run_part(part, work[part], skipped)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check; returns the exit code."""
    options, found = parse(arguments), find()
    print("\n".join(found.lines), flush=True)
    backend = choose_backend(options.backend, found)
    if len(found.tensorrt) > 1:
        print(f"found: two TensorRT libraries; this run checks {backend}, another one with --backend the other")
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        check = Check(options=options, found=found, work=work, backend=backend)
        check.deadline = time.monotonic() + options.seconds
        results: list[PartResult] = []
        settings = {name: str(value) for name, value in vars(options).items()}
        for part in options.parts:
            results.append(check.run(part))
            _print_part(results[-1])
            write_json(options.json, found, settings, results)
    print(f"\n{summary(results)}\n\nall figures: {options.json}")
    return exit_code(results)


def _print_part(result: PartResult) -> None:
    print(f"\n== {result.part}: {result.status} {result.reason}", flush=True)
    for text in (*result.outcome.tables, *result.outcome.notes, *result.outcome.failures):
        print(f"\n{text}", flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SpecTrtError as error:
        sys.exit(f"error: {error}")
