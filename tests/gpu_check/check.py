"""What each part does, in its own process."""

import argparse
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tests.gpu_check.options import Files
from tests.gpu_check.report import Outcome

if TYPE_CHECKING:
    from spec_trt.runtime.engine import Engine
    from tests.gpu_check.subject import Subject


class Check:
    """The parts of the check.

    Args:
        options: The command line.
        files: What parts share.
        outcome: Of the part that runs.
        backend: The TensorRT back end.
        has_bf16: Whether the GPU can do bf16.
        stop: The time, by `time.monotonic`, from which on nothing more is begun.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        files: Files,
        outcome: Outcome,
        *,
        backend: str | None,
        has_bf16: bool,
        stop: float,
    ) -> None:
        self._options, self._files, self._outcome = options, files, outcome
        self._backend, self._has_bf16, self._stop = backend, has_bf16, stop

    def run(self, part: str) -> None:
        """Run a part of `parts.PARTS`."""
        parts: dict[str, Callable[[], None]] = {
            "kernels": self._kernels,
            "torch": self._torch,
            "prepare": self._prepare,
            "plugin": partial(self._engine, "plugin"),
            "native": partial(self._engine, "native"),
            "timing": self._timing,
            "peer": self._peer,
            "ort": self._ort,
        }
        parts[part]()

    def _subject(self) -> "Subject":
        from tests.gpu_check.subject import choose_subject

        given = self._options
        subject = choose_subject(
            given.model, medusa=given.medusa, eagle=given.eagle, dtype=given.dtype, work=self._files.work
        )
        for note in subject.notes:
            self._outcome.note(note)
        return subject

    def _kernels(self) -> None:
        from tests.gpu_check.kernels import run_kernels

        run_kernels(self._outcome, has_bf16=self._has_bf16, stop=self._stop)

    def _timing(self) -> None:
        from tests.gpu_check.kernel_timing import time_kernel

        time_kernel(self._outcome, self._stop)

    def _torch(self) -> None:
        from tests.gpu_check.subject import encoded_prompts
        from tests.gpu_check.torch_loop import torch_engine
        from tests.torch_session import TorchModel

        model = TorchModel(self._subject().config)
        length = self._options.length
        load = partial(torch_engine, model, length=length)
        self._loop("PyTorch, Triton attention", load, encoded_prompts(model.loaded.tokenizer))

    def _prepare(self) -> None:
        from tests.gpu_check.engines import make_bundle, make_reference

        bundle = make_bundle(self._subject(), self._files.bundle)
        self._outcome.note(f"bundle: {bundle}")
        self._outcome.note(f"reference: {make_reference(bundle, self._files.ort_engine)}")

    def _engine(self, attention: str) -> None:
        from spec_trt.runtime.engine import Engine
        from tests.gpu_check.engines import build, compare_logits
        from tests.gpu_check.subject import bundle_prompts

        assert self._backend is not None
        prompts = bundle_prompts(self._files.bundle)
        path = self._files.work / f"engine-{attention}"
        seconds = build(self._backend, self._files.bundle, attention, path, length=self._options.length)
        self._outcome.record("build_seconds", seconds)
        title = f"{self._backend}, {attention}"
        engine = Engine.load(path, cuda_graphs=False)
        compare_logits(self._outcome, title, engine, Engine.load(self._files.ort_engine), prompts)
        self._loop(title, partial(Engine.load, path), prompts)

    def _loop(self, title: str, load: "Callable[..., Engine]", prompts: list[list[int]]) -> None:
        """Losslessness and cost of an engine: without CUDA graphs first, as a capture that fails ends everything."""
        from tests.gpu_check.lossless import SAMPLED, check_lossless
        from tests.gpu_check.speed import time_engine
        from tests.gpu_check.subject import long_prompt

        tokens, outcome, stop = self._options.tokens, self._outcome, self._stop
        check_lossless(
            outcome, f"{title}, no CUDA graphs", load(cuda_graphs=False), prompts[:1], tokens=tokens // 2, stop=stop
        )
        engine = load(cuda_graphs=True)
        check_lossless(outcome, title, engine, prompts, tokens=tokens, stop=stop)
        time_engine(outcome, title, engine, long_prompt(prompts, self._options.past), tokens=tokens)
        check_lossless(outcome, f"{title}, sampled", engine, prompts[:2], tokens=tokens, sampling=SAMPLED, stop=stop)

    def _peer(self) -> None:
        from tests.gpu_check.speed import time_peer
        from tests.gpu_check.subject import drawn_prompts, long_prompt

        prompt = long_prompt(drawn_prompts(count=1, vocab=300, length=48), self._options.past)
        time_peer(self._outcome, self._subject().config, prompt, tokens=self._options.tokens)

    def _ort(self) -> None:
        from spec_trt.runtime.engine import Engine
        from tests.gpu_check.lossless import check_lossless
        from tests.gpu_check.subject import bundle_prompts

        prompts = bundle_prompts(self._files.ort_engine)
        engine = Engine.load(self._files.ort_engine, device="cuda")
        check_lossless(
            self._outcome, "ONNX Runtime, CUDA, fp32", engine, prompts, tokens=self._options.tokens, stop=self._stop
        )
