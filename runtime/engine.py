"""The engine: a directory that `build` wrote, loaded and ready to generate."""

import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import NoReturn, TypeGuard, cast, overload

from torch import Tensor

from spec_trt import names
from spec_trt.errors import BusyError, ClosedError, ConfigError, ManifestError, PromptError
from spec_trt.manifest import Manifest, load_manifest
from spec_trt.runtime.accept import GreedyAcceptance
from spec_trt.runtime.acceptance_rule import acceptance_rule
from spec_trt.runtime.backend import Backend, open_backend
from spec_trt.runtime.cache_memory import DTYPES
from spec_trt.runtime.costs import Costs
from spec_trt.runtime.detokenizer import Detokenizer
from spec_trt.runtime.drafters import METHODS, NO_HEADS, available_methods, make_drafter
from spec_trt.runtime.drafters.autoregressive import AutoregressiveDrafter
from spec_trt.runtime.drafters.drafter import Drafter, PassOutput
from spec_trt.runtime.drafters.heads import Heads
from spec_trt.runtime.generation import Generation, GenerationConfig, Result
from spec_trt.runtime.head_loader import HeadLoader
from spec_trt.runtime.live_sequence import LiveSequence
from spec_trt.runtime.sampler import Sampler
from spec_trt.runtime.scheduler import Scheduler
from spec_trt.runtime.stop import Emission, StopChecker
from spec_trt.runtime.target import Target
from spec_trt.runtime.tree import ROOT, Tree
from spec_trt.tokenizer import Tokenizer, load_tokenizer

__all__ = ["Engine", "Prompt", "Prompts"]

Prompt = str | Sequence[int]
Prompts = Sequence[str] | Sequence[Sequence[int]]


class Engine:
    """A loaded engine. Its methods are for any thread, and run whatever is asked for meanwhile together.

    Attributes:
        manifest: What the directory holds.
        directory: Where its tokenizer's files and measured costs are.
        new_heads: Opens the draft heads with caches of their own; raises `ClosedError` once the engine is closed.

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
        self._lock = threading.RLock()
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
        return cls.on_backend(directory, manifest, backend)

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
        built = self.manifest.engine.tensorrt if self.manifest.engine else None
        longest = self.manifest.model.max_positions
        return longest if built is None else min(longest, built.max_length)

    @property
    def precision(self) -> str:
        """What the engine computes in: `fp32`, `int8`, ..."""
        return self.manifest.engine.precision if self.manifest.engine else self.manifest.model.dtype

    @property
    def max_batch(self) -> int:
        """Sequences of one pass at the most, as far as the engine was built for a number of them."""
        built = self.manifest.engine.tensorrt if self.manifest.engine else None
        return sys.maxsize if built is None else built.max_batch

    @property
    def has_fixed_cache(self) -> bool:
        """Whether every sequence's cache has room for `max_length` tokens from the start."""
        return self.manifest.engine is not None and self.manifest.engine.tensorrt is not None

    @property
    def target_row_bytes(self) -> int:
        """Memory of one token in the target's cache."""
        model = self.manifest.model
        return 2 * model.layers * model.kv_heads * model.head_dim * DTYPES[model.dtype].itemsize

    @property
    def draft_row_bytes(self) -> int:
        """Memory of one token in a draft model's cache; 0 without one."""
        eagle = self.manifest.heads.eagle
        if eagle is None:
            return 0
        return 2 * eagle.layers * eagle.kv_heads * eagle.head_dim * DTYPES[self.manifest.model.dtype].itemsize

    @cached_property
    def costs(self) -> Costs | None:
        """What passes cost on this machine; None where `spec-trt profile --save` has not measured it."""
        return Costs.load(self.directory)

    @cached_property
    def _optional_tokenizer(self) -> Tokenizer | None:
        return load_tokenizer(self.directory)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, loaded on first use.

        Raises:
            ManifestError: The directory holds none: prompts must be token ids, and text is empty.
        """
        if self._optional_tokenizer is None:
            raise ManifestError(
                f"{self.directory} holds no tokenizer: give token ids instead of text, "
                "or export again from a model that has one"
            )
        return self._optional_tokenizer

    def encode(self, text: str, *, chat: bool = False) -> list[int]:
        """Token ids of a prompt, inside the model's chat template if asked for.

        Raises:
            PromptError: The text is empty, or there is no chat template.
        """
        if not text:
            raise PromptError("the prompt is empty: expected some text")
        if not _is_unicode(text):
            raise PromptError("the prompt is not valid text: expected UTF-8")
        return self.tokenizer.encode_chat([{"role": "user", "content": text}]) if chat else self.tokenizer.encode(text)

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
            return self._generate_all(prompt, config)
        return self.stream(cast("Prompt", prompt), config).result()

    def stream(
        self, prompt: Prompt, config: GenerationConfig | None = None, *, timeout: float | None = None
    ) -> Generation:
        """Generate, handing out text and tokens as soon as they are decided; see `Scheduler.submit`."""
        return self._scheduler().submit(prompt, config, timeout=timeout)

    async def agenerate(
        self, prompt: Prompt, config: GenerationConfig | None = None, *, timeout: float | None = None
    ) -> Result:
        """As `generate`, for an event loop; who stops waiting cancels the generation."""
        return await self.stream(prompt, config, timeout=timeout).aresult()

    async def astream(
        self, prompt: Prompt, config: GenerationConfig | None = None, *, timeout: float | None = None
    ) -> AsyncIterator[Emission]:
        """As `stream`, for an event loop; leaving the iteration cancels the generation."""
        with self.stream(prompt, config, timeout=timeout) as generation:
            async for emission in generation:
                yield emission

    def close(self) -> None:
        """End all generations with `ClosedError` and free the memory. It may be closed again."""
        scheduler = self._open_scheduler()
        if scheduler is not None:
            scheduler.close()
        with self._lock:
            self._new_target, self.new_heads = _closed, _closed
            self._heads, self._own = NO_HEADS, None

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
        self.check_prompt(token_ids)
        kept = _KeptLogits()
        sequence = LiveSequence(
            token_ids, draft=lambda _heads: AutoregressiveDrafter(), acceptance=kept, stopper=self._stopper(1)
        )
        self._scheduler().run(sequence).result()
        return kept.logits

    def prepare(self, prompt: Prompt, config: GenerationConfig, *, timeout: float | None = None) -> LiveSequence:
        """A sequence that is ready to be decoded, all of what was asked for checked; see `Scheduler.submit`."""
        token_ids = self.encode(prompt) if isinstance(prompt, str) else list(prompt)
        self.check_prompt(token_ids)
        if timeout is not None and not timeout > 0:
            raise ConfigError(f"a timeout must be more than 0 seconds: found {timeout}; leave it out for none")
        model = self.manifest.model
        eos_ids = () if config.ignore_eos else model.eos_ids
        sampler = Sampler(config.sampling, token_ids, vocab=model.vocab)

        def draft(heads: Heads) -> Drafter:
            return make_drafter(
                config.method, config.options, vocab=model.vocab, eos_ids=eos_ids, heads=heads, sampler=sampler
            )

        if config.budget == "auto" and self.costs is None:
            raise ConfigError(
                f"budget auto needs to know what passes cost here: run `spec-trt profile {self.directory} --save`"
            )
        draft(self._heads)  # what is wrong with the options is known now
        return LiveSequence(
            token_ids,
            draft=draft,
            method=config.method,
            head=METHODS[config.method].head,
            budget=config.budget or ("auto" if self.costs else "fixed"),
            acceptance=acceptance_rule(sampler),
            stopper=self._stopper(
                min(config.max_new_tokens, self.max_length - len(token_ids)), eos_ids=eos_ids, stop=config.stop
            ),
            log_probs=config.log_probs,
            timeout=timeout,
        )

    def _stopper(self, limit: int, *, eos_ids: Collection[int] = (), stop: Sequence[str] = ()) -> StopChecker:
        tokenizer = self._optional_tokenizer
        detokenizer = Detokenizer(tokenizer.decode if tokenizer else _no_text)
        return StopChecker(detokenizer=detokenizer, eos_ids=eos_ids, stop=stop, max_new_tokens=limit)

    def new_target(self, *, batch: int = 1, cache_bytes: int | None = None) -> Target:
        """The model with a cache of its own, for those who run passes themselves.

        Args:
            batch: Sequences that its cache holds.
            cache_bytes: Memory that a cache that grows stays within; any when None.

        Raises:
            ClosedError: The engine is closed.
        """
        return self._new_target(batch, cache_bytes)

    def claim(self, scheduler: Scheduler) -> None:
        """Let a scheduler be the one that runs the engine.

        Raises:
            ConfigError: Another one is open, and not an idle one of the engine's own.
        """
        with self._lock:
            other = self._open_scheduler()
            if other is not None and (other is not self._own or other.in_flight):
                raise ConfigError("this engine has an open scheduler: use that one, or close it first")
            if other is not None:
                other.close()
            self._claimant = weakref.ref(scheduler)

    def release(self, scheduler: Scheduler) -> None:
        """Let go of a scheduler that is closed."""
        with self._lock:
            if self._open_scheduler() is scheduler:
                self._claimant = None
            if self._own is scheduler:
                self._own = None

    def _open_scheduler(self) -> Scheduler | None:
        return None if self._claimant is None else self._claimant()

    def _scheduler(self) -> Scheduler:
        """The open scheduler, or one of the engine's own."""
        with self._lock:
            found = self._open_scheduler()
            if found is None:
                found = self._own = Scheduler(self)
            return found

    def _generate_all(self, prompts: Prompts, config: GenerationConfig | None) -> list[Result]:
        """Every prompt's result; as many are in flight as the queue takes."""
        generations: list[Generation] = []
        for prompt in prompts:
            while True:
                try:
                    generations.append(self.stream(prompt, config))
                    break
                except BusyError:
                    earlier = next((generation for generation in generations if not generation.ended), None)
                    if earlier is None:
                        raise
                    earlier.result()
        return [generation.result() for generation in generations]

    def check_prompt(self, token_ids: Sequence[int]) -> None:
        """Refuse a prompt that can't be run.

        Raises:
            PromptError: It is empty, does not fit the context, or has an id outside the vocabulary.
        """
        model = self.manifest.model
        if not token_ids:
            raise PromptError("the prompt is empty: expected at least one token")
        if len(token_ids) >= self.max_length:
            built = self.max_length < model.max_positions
            holds, remedy = (
                ("engine", ", or build it again with a larger --max-length") if built else ("model's context", "")
            )
            raise PromptError(
                f"the prompt has {len(token_ids)} tokens, the {holds} holds {self.max_length} and needs room for at "
                f"least one more: shorten the prompt{remedy}"
            )
        outside = [token for token in token_ids if not 0 <= token < model.vocab]
        if outside:
            raise PromptError(f"token id {outside[0]} is outside the model's vocabulary of {model.vocab}")


class _KeptLogits(GreedyAcceptance):
    """Accepts nothing, and keeps the logits behind the root."""

    needs = frozenset({names.LOGITS})

    def accept(self, tree: Tree, out: PassOutput) -> tuple[list[int], int]:
        self.logits = out.tensors[names.LOGITS][ROOT].clone()
        return super().accept(tree, out)


def _is_several(prompt: Prompt | Prompts) -> TypeGuard[Prompts]:
    return not isinstance(prompt, str) and len(prompt) > 0 and not isinstance(prompt[0], int)


def _closed(*_arguments: object) -> NoReturn:
    raise ClosedError("the engine is closed: load it again")


def _is_unicode(text: str) -> bool:
    """Whether a text has no lone surrogates, as undecodable bytes leave them."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _no_text(token_ids: Sequence[int]) -> str:  # noqa: ARG001 - a tokenizer's signature
    """What token ids decode to without a tokenizer."""
    return ""
