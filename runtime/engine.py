"""The engine: a directory that `build` wrote, loaded and ready to generate."""

import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Number
from pathlib import Path
from types import TracebackType
from typing import NoReturn, TypeGuard, cast, overload

from torch import Tensor

from spec_trt import names
from spec_trt.errors import ClosedError, ConfigError
from spec_trt.manifest import Manifest, load_manifest
from spec_trt.runtime.backend import Backend, open_backend
from spec_trt.runtime.costs import Costs
from spec_trt.runtime.drafters import available_methods
from spec_trt.runtime.drafters.heads import Heads
from spec_trt.runtime.engine_size import max_batch, max_length
from spec_trt.runtime.generation import Generation, GenerationConfig, Result
from spec_trt.runtime.head_loader import HeadLoader
from spec_trt.runtime.live_sequence import LiveSequence
from spec_trt.runtime.reception import Reception
from spec_trt.runtime.scheduler import Scheduler
from spec_trt.runtime.stop import Emission
from spec_trt.runtime.target import Target
from spec_trt.tokenizer import Tokenizer

__all__ = ["Engine", "Prompt", "Prompts"]

Prompt = str | Sequence[int]
Prompts = Sequence[str] | Sequence[Sequence[int]]


class Engine:
    """A loaded engine. Its methods are for any thread, and run whatever is asked for meanwhile together.

    Attributes:
        manifest: What the directory holds.
        directory: Where its tokenizer's files and measured costs are.
        new_heads: Opens the draft heads with caches of their own; raises `ClosedError` once the engine is closed.
        read_costs: Says what passes cost on this machine, as `costs`, without holding on to the engine.

    Args:
        manifest: See above.
        directory: See above.
        new_target: Makes a model with a cache of its own, for a number of sequences and bytes (any when None).
        new_heads: See above.
    """

    def __init__(
        self,
        manifest: Manifest,
        directory: Path,
        new_target: Callable[[int, int | None], Target],
        new_heads: Callable[[], Heads] = Heads,
    ) -> None:
        self.manifest = manifest
        self.directory = directory
        self._new_target, self.new_heads = new_target, new_heads
        self._heads = new_heads()
        self._reception = reception = Reception(manifest, directory, self._heads)
        self.read_costs: Callable[[], Costs | None] = lambda: reception.costs
        self._lock, self._process = threading.RLock(), os.getpid()
        self._claimant: weakref.ref[Scheduler] | None = None
        self._own: Scheduler | None = None

    @classmethod
    def load(
        cls,
        path: Path | str,
        *,
        device: str | None = None,
        threads: int | None = None,
        verify: bool = False,
        cuda_graphs: bool = True,
    ) -> "Engine":
        """Load an engine directory; its manifest says what runs it.

        Args:
            path: What `spec-trt build` wrote.
            device: `cpu` or `cuda`; when None, the CPU, or the GPU for an engine of TensorRT's.
            threads: Threads inside one operator on a CPU; as many as there are cores when None.
            verify: Whether to check every file's hash, not only its size.
            cuda_graphs: Whether a TensorRT engine's passes are captured as CUDA graphs and replayed.

        Raises:
            ManifestError: The directory is damaged, is a bundle, or was built for another library, plugin or GPU.
            BackendError: The back end is not installed, there is no GPU for it, or it refuses the graph.
            ConfigError: It does not run on the device.
        """
        directory = Path(path)
        manifest = load_manifest(directory, verify=verify)
        backend = open_backend(directory, manifest, device=device, threads=threads, cuda_graphs=cuda_graphs)
        engine = cls.on_backend(directory, manifest, backend)
        engine._reception.prepare()  # in an event loop the first request would block all others
        return engine

    @classmethod
    def on_backend(cls, directory: Path, manifest: Manifest, backend: Backend) -> "Engine":
        """Open an engine's graphs on a back end: for those who bring one of their own; see `load`."""
        base, fixed = backend.open(names.BASE), backend.fixed_shapes(names.BASE)

        def new_target(batch: int, cache_bytes: int | None) -> Target:
            return Target(base, manifest.model, batch=batch, cache_bytes=cache_bytes, fixed=fixed)

        return cls(manifest, directory, new_target, HeadLoader(manifest, backend))

    @property
    def methods(self) -> list[str]:
        """The methods that this engine can run: those that need no draft head, or one that it has."""
        return available_methods(self._heads)

    @property
    def max_length(self) -> int:
        """Tokens of a sequence at the most, prompt included: the model's context, or what the engine was built for."""
        return max_length(self.manifest)

    @property
    def max_batch(self) -> int:
        """Sequences of one pass at the most, as far as the engine was built for a number of them."""
        return max_batch(self.manifest)

    @property
    def precision(self) -> str:
        """What the engine computes in: `fp32`, `int8`, ..."""
        return self.manifest.engine.precision if self.manifest.engine else self.manifest.model.dtype

    @property
    def costs(self) -> Costs | None:
        """What passes cost on this machine; None where `spec-trt profile --save` has not measured it.

        Raises:
            ManifestError: What it has measured can't be read.
        """
        return self._reception.costs

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, loaded on first use.

        Raises:
            ManifestError: The directory holds none: prompts must be token ids, and text is empty.
        """
        return self._reception.tokenizer

    def encode(self, text: str, *, chat: bool = False) -> list[int]:
        """Token ids of a prompt, inside the model's chat template if asked for.

        Raises:
            PromptError: The text is empty, or there is no chat template.
        """
        return self._reception.encode(text, chat=chat)

    def check_prompt(self, token_ids: Sequence[int]) -> None:
        """Refuse a prompt that can't be run.

        Raises:
            PromptError: It is empty, does not fit the context, or has an id outside the vocabulary.
        """
        self._reception.check_prompt(token_ids)

    @overload
    def generate(  # type: ignore[overload-overlap]  # a text is a sequence of texts itself
        self, prompt: Prompt, config: GenerationConfig | None = None
    ) -> Result: ...

    @overload
    def generate(self, prompt: Prompts, config: GenerationConfig | None = None) -> list[Result]: ...

    def generate(
        self,
        prompt: Prompt | Prompts,
        config: GenerationConfig | None = None,
    ) -> Result | list[Result]:
        """Generate to the end, from one prompt or from several together; see `stream`.

        Args:
            prompt: A text or token ids, or a list of such.
            config: How to generate; plain greedy decoding by default.
        """
        if _is_several(prompt):
            generations = [self._submit(each, config, wait=True) for each in prompt]
            return [generation.result() for generation in generations]
        return self.stream(cast("Prompt", prompt), config).result()

    def stream(
        self, prompt: Prompt, config: GenerationConfig | None = None, *, timeout: float | None = None
    ) -> Generation:
        """Generate, handing out text and tokens as soon as they are decided; see `Scheduler.submit`."""
        return self._submit(prompt, config, timeout=timeout)

    async def agenerate(
        self, prompt: Prompt, config: GenerationConfig | None = None, *, timeout: float | None = None
    ) -> Result:
        """As `generate`, for an event loop; who stops waiting cancels the generation."""
        return await self.stream(prompt, config, timeout=timeout).aresult()

    async def astream(
        self, prompt: Prompt, config: GenerationConfig | None = None, *, timeout: float | None = None
    ) -> AsyncGenerator[Emission, None]:
        """As `stream`, for an event loop; leaving the iteration cancels the generation."""
        with self.stream(prompt, config, timeout=timeout) as generation:
            async for emission in generation:
                yield emission

    def close(self) -> None:
        """End all generations with `ClosedError` and free the memory. It may be closed again."""
        with self._lock:
            self._new_target, self.new_heads = _closed, _closed
            self._heads, self._reception = cast("Heads", _Closed()), cast("Reception", _Closed())
            scheduler, self._own = self._open_scheduler(), None
        if scheduler is not None:
            scheduler.close()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> str:
        raise ConfigError("an engine can't be pickled: hand its directory over, and load it in the other process")

    def next_logits(self, token_ids: Sequence[int]) -> Tensor:
        """The target's logits after a text: [vocab].

        Raises:
            PromptError: As `stream`.
        """
        self.check_process()
        sequence, kept = self._reception.take_for_logits(token_ids)
        self._scheduler().run(sequence).result()
        return kept.logits

    def prepare(self, prompt: Prompt, config: GenerationConfig, *, timeout: float | None = None) -> LiveSequence:
        """A sequence that is ready to be decoded, all of what was asked for checked; see `Scheduler.submit`."""
        return self._reception.take(prompt, config, timeout)

    def new_target(self, *, batch: int = 1, cache_bytes: int | None = None) -> Target:
        """The model with a cache of its own, for those who run passes themselves.

        Args:
            batch: Sequences that its cache holds.
            cache_bytes: Memory that a cache that grows stays within; any when None.

        Raises:
            ClosedError: The engine is closed.
        """
        return self._new_target(batch, cache_bytes)

    @contextmanager
    def claimed_by(self, scheduler: Scheduler) -> Iterator[None]:
        """Let a scheduler be the one that runs the engine once the block has made it.

        Raises:
            ConfigError: Another one is open, and not an idle one of the engine's own.
        """
        with self._lock:
            other = self._open_scheduler()
            if other is not None and (other is not self._own or other.in_flight):
                raise ConfigError("this engine has an open scheduler: use that one, or close it first")
            if other is not None:
                other.close()
            yield
            self._claimant = weakref.ref(scheduler)

    def release(self, scheduler: Scheduler) -> None:
        """Let go of a scheduler that is closed."""
        with self._lock:
            if self._claimant is not None and self._claimant() is scheduler:
                self._claimant = None
            if self._own is scheduler:
                self._own = None

    def _open_scheduler(self) -> Scheduler | None:
        found = None if self._claimant is None else self._claimant()
        return None if found is None or found.closed else found

    def _scheduler(self) -> Scheduler:
        """The open scheduler, or one of the engine's own."""
        with self._lock:
            found = self._open_scheduler()
            if found is None:
                found = self._own = Scheduler(self)
            return found

    def _submit(
        self, prompt: Prompt, config: GenerationConfig | None, *, timeout: float | None = None, wait: bool = False
    ) -> Generation:
        """Ask the open scheduler, or the next one where that has just been closed for it."""
        while True:
            scheduler = self._scheduler()
            try:
                return scheduler.submit(prompt, config, timeout=timeout, wait=wait)
            except ClosedError:
                if not scheduler.closed:
                    raise

    @property
    def is_forked(self) -> bool:
        """Whether this process is not the one that loaded it: the threads are there."""
        return os.getpid() != self._process

    def check_process(self) -> None:
        """Refuse to run in another process than the one that loaded it.

        Raises:
            ConfigError: It is another one.
        """
        if self.is_forked:
            raise ConfigError(
                "the engine was loaded before a fork, its threads are not in this process: load it after the fork"
            )


class _Closed:
    """What is left of an engine's parts."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        _closed()


def _is_several(prompt: Prompt | Prompts) -> TypeGuard[Prompts]:
    return isinstance(prompt, list | tuple) and len(prompt) > 0 and not isinstance(prompt[0], Number)


def _closed(*_arguments: object) -> NoReturn:
    raise ClosedError("the engine is closed: load it again")
