"""What only a machine with an NVIDIA GPU can check: `python -m tests.gpu_check --model PATH --json OUT.json`.

It says what it found (PyTorch, Triton, tensorrt, tensorrt-rtx, onnxruntime-gpu), runs what that allows, and ends with
a table and a JSON file, within --seconds. Every part is a process of its own with a share of that time: one that
fails, crashes or hangs is named with the last lines it printed, what it had found by then is kept, and the others run.
A part that can't run is skipped by name. In this order:

  kernels  the Triton kernels against the NumPy reference, in fp16 and bf16
  torch    every method over PyTorch's own modules, their attention the Triton kernel, is plain decoding, with CUDA
           graphs off and on, greedy and sampled; what a pass costs by its nodes; needs no TensorRT
  prepare  the model's bundle, and ONNX Runtime's engine in fp32, whose logits engines are compared with: no GPU's work
  plugin   builds a TensorRT engine for this GPU with the plugin; its logits beside ONNX Runtime's on the CPU; then as
           `torch`
  native   the same with TensorRT's own attention
  timing   the kernels' time beside SDPA's and FlexAttention's, and as a share of the bandwidth of a copy
  peer     plain decoding by PyTorch alone: static cache, torch.compile
  ort      every method through ONNX Runtime, where it has CUDA

The machine needs no network, but Python with a CUDA build of PyTorch, Triton, and what `pip install -e '.[dev]'` brings
(transformers 5.24 or later, onnx-ir, onnxscript, click, tqdm, pytest, hypothesis); it runs from a checkout's root,
installed or not. Prepare, where there is a network, and carry as files:

  the model      --model: a directory or a .gguf file (then with the `gguf` package). For less than 64 MiB a piece:
                 `xz -T0 -9 -k FILE; split -b 60M FILE.xz FILE.part-`, and there `cat FILE.part-* | xz -d > FILE`.
                 Without one the check runs on random weights of SmolLM2-135M's shape, which it makes itself.
  its heads      --medusa and --eagle; those of the demo are in the package.
  libraries      wheels: `pip wheel --no-deps -w WHEELS tensorrt-rtx-cu13 tensorrt-rtx-cu13-bindings
                 tensorrt-rtx-cu13-libs polygraphy transformers onnxruntime` (not `pip download`: the first of them is
                 there as a source alone), and there `pip install --no-index --no-deps WHEELS/*.whl`, or `--target DIR`
                 and PYTHONPATH=DIR. libtensorrt_rtx.so.1 is the large one: unpack its wheel and split the file as
                 above.
  (optional)     --work DIR after `python -m tests.gpu_check --parts prepare --work DIR`, which runs on any machine,
                 with the same --model and --dtype. It spares the minutes that exporting takes on the one with the GPU.

Where GPU time is short, bring DIR, and give less than is left as --seconds; the first parts are worth the most.

Exit code: 0 where everything that ran holds, 1 where something does not, 2 where nothing could run.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.gpu_check.child import run_child
from tests.gpu_check.found import Found, skip_reason
from tests.gpu_check.options import Files, choose_backend, files_of, parse
from tests.gpu_check.parts import share
from tests.gpu_check.report import PartResult, exit_code, plain_rates, summary, write_json
from tests.gpu_check.worker import LOOK, Job

LOOK_SECONDS = 60.0


class Run:
    """One run of the command; this process itself touches no GPU.

    Args:
        arguments: The command line, as processes of parts get it.
        options: The same, read.
        work: Where files are made.
        worker: The module that runs a part.
    """

    def __init__(
        self, arguments: Sequence[str], options: argparse.Namespace, work: Path, worker: str = "tests.gpu_check.worker"
    ) -> None:
        self._arguments, self._options, self._worker = list(arguments), options, worker
        self._files: Files = files_of(options, work)
        self._deadline: float = time.monotonic() + options.seconds
        self._found, self._backend = Found(), choose_backend(None, Found())

    def all_parts(self) -> list[PartResult]:
        """Look around, then run every part; the JSON is written at once, and again after each."""
        results: list[PartResult] = []
        self._write(results)
        looked, parts = self._look(), list(self._options.parts)
        if looked.status != "ok":
            results.append(looked)
            parts = []
        while parts:
            results.append(self._part(parts[0], parts))
            _print_part(results[-1])
            self._write(results)
            parts = parts[1:]
        self._write(results)
        return results

    def _look(self) -> PartResult:
        """Find the GPU and the libraries, in a process too: a driver that is broken can hang there."""
        result = self._child(LOOK, min(LOOK_SECONDS, self._options.seconds))
        if result.status != "ok":
            _print_part(result)
            return result
        self._found = Found(**result.outcome.figures)
        self._backend = choose_backend(self._options.backend, self._found)
        print("\n".join(self._found.lines), flush=True)
        if len(self._found.tensorrt) > 1:
            print(f"found: two TensorRT libraries; this run checks {self._backend}, --backend the other", flush=True)
        return result

    def _part(self, part: str, left: Sequence[str]) -> PartResult:
        reasons = {name: self._skip_reason(name, prepared="prepare" in left and name != "prepare") for name in left}
        skipped = reasons[part]
        seconds = share(part, [name for name in left if reasons[name] is None or name == part], self._seconds_left)
        if skipped is None and seconds < 1:
            skipped = f"the {self._options.seconds:.0f} seconds of --seconds are over"
        if skipped is not None:
            return PartResult(part=part, status="skipped", reason=skipped)
        print(f"\n.. {part}: {seconds:.0f} s at the most", flush=True)
        return self._child(part, seconds)

    def _skip_reason(self, part: str, *, prepared: bool) -> str | None:
        """Why a part can't run, by the files there are or, where `prepared`, will be."""
        if part == "prepare" and self._options.parts == ["prepare"]:
            return None  # asked for by name: for another machine
        prepared = prepared or self._files.prepared
        return skip_reason(part, self._found, backend=self._backend, dtype=self._options.dtype, prepared=prepared)

    @property
    def _seconds_left(self) -> float:
        return self._deadline - time.monotonic()

    def _child(self, part: str, seconds: float) -> PartResult:
        work = self._files.work
        job = Job(
            part=part,
            arguments=self._arguments,
            work=str(work),
            backend=self._backend,
            has_bf16=self._found.has_bf16,
            seconds=seconds,
            result=str(work / f"{part}.result.json"),
        )
        Path(job.result).unlink(missing_ok=True)
        command = job.command(work / f"{part}.job.json", self._worker)
        return run_child(part, command, result=Path(job.result), log=work / f"{part}.log", seconds=seconds)

    def _write(self, results: Sequence[PartResult]) -> None:
        settings = {name: str(value) for name, value in vars(self._options).items()}
        write_json(self._options.json, self._found, settings, results)


def main(arguments: Sequence[str] | None = None, worker: str = "tests.gpu_check.worker") -> int:
    """Run the check; returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    options = parse(arguments, __doc__)
    with tempfile.TemporaryDirectory() as temporary:
        work: Path = options.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        results = Run(arguments, options, work, worker).all_parts()
    for text in (plain_rates(results), summary(results), f"all figures: {options.json}"):
        print(f"\n{text}" if text else "", flush=True)
    return exit_code(results)


def _print_part(result: PartResult) -> None:
    print(f"\n== {result.part}: {result.status} {result.reason}", flush=True)
    for text in (*result.outcome.tables, *result.outcome.notes, *result.outcome.failures):
        print(f"\n{text}", flush=True)
    if result.last_lines:
        print("\nlast lines:", *result.last_lines, sep="\n    ", flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a part's process is ended on the way out
    try:
        sys.exit(main())
    except OSError as error:  # of --work and --json
        sys.exit(f"error: {error}")
