"""The engine: a directory that `build` wrote, loaded and ready to generate."""

import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from spec_trt import names
from spec_trt.errors import ConfigError, ManifestError, PromptError
from spec_trt.manifest import Manifest, load_manifest
from spec_trt.runtime.accept import Acceptance, Guarantee
from spec_trt.runtime.acceptance_rule import acceptance_rule
from spec_trt.runtime.backend import open_backend
from spec_trt.runtime.decode import decode
from spec_trt.runtime.detokenizer import Detokenizer
from spec_trt.runtime.drafters import NO_HEADS, available_methods, make_drafter
from spec_trt.runtime.drafters.drafter import Drafter
from spec_trt.runtime.drafters.heads import Heads
from spec_trt.runtime.head_loader import load_heads
from spec_trt.runtime.sampler import Sampler
from spec_trt.runtime.sampling import Sampling
from spec_trt.runtime.stats import Stats
from spec_trt.runtime.stop import Emission, FinishReason, StopChecker
from spec_trt.runtime.target import Target
from spec_trt.runtime.tree import TreeBuilder
from spec_trt.tokenizer import Tokenizer, load_tokenizer

__all__ = ["Engine", "Generation", "GenerationConfig", "Result"]

Prompt = str | Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationConfig:
    """How to generate.

    Attributes:
        method: The speculative method's name.
        options: The method's own options, by name.
        sampling: How the next token is chosen; the likeliest one by default.
        max_new_tokens: Tokens to emit at the most.
        stop: Texts that end the generation and are cut off.
        ignore_eos: Whether to go on past the model's end-of-sequence tokens.
    """

    method: str = "autoregressive"
    options: Mapping[str, Any] = field(default_factory=dict)
    sampling: Sampling = field(default_factory=Sampling)
    max_new_tokens: int = 256
    stop: Sequence[str] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens must be at least 1, found {self.max_new_tokens}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A finished generation; nothing that was cut by a stop is in it.

    Attributes:
        text: What was generated.
        token_ids: The same as tokens.
        finish_reason: Why it ended.
        guarantee: What it has in common with plain decoding's: every token, its distribution only, or neither.
        stats: What it cost and gained.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    guarantee: Guarantee
    stats: Stats


class Generation:
    """A generation under way: iterate it for pieces as they come, or take the whole `result`."""

    def __init__(self, emissions: Generator[Emission, None, None], stats: Stats, guarantee: Guarantee) -> None:
        self.stats, self.guarantee = stats, guarantee
        self._emissions = emissions
        self._seen: list[Emission] = []

    def __iter__(self) -> Generator[Emission, None, None]:
        for emission in self._emissions:
            self._seen.append(emission)
            yield emission

    def close(self) -> None:
        """End a generation before its end, freeing the engine."""
        self._emissions.close()

    def result(self) -> Result:
        """Run to the end and return all of it."""
        for _ in self:
            pass
        reason = self._seen[-1].finish_reason if self._seen else None
        if reason is None:
            raise ConfigError("this generation was closed before its end: it has no result")
        return Result(
            text="".join(emission.text for emission in self._seen),
            token_ids=[token for emission in self._seen for token in emission.token_ids],
            finish_reason=reason,
            guarantee=self.guarantee,
            stats=self.stats,
        )


class Engine:
    """A loaded engine; runs one generation at a time.

    Args:
        manifest: What the directory holds.
        target: The model.
        tokenizer_directory: Where its tokenizer's files are.
        heads: The draft heads.
    """

    def __init__(self, manifest: Manifest, target: Target, tokenizer_directory: Path, heads: Heads = NO_HEADS) -> None:
        self.manifest = manifest
        self._target, self._heads = target, heads
        self._tokenizer_directory = tokenizer_directory
        self._lock = threading.Lock()

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
        target = Target(backend.open(names.BASE), manifest.model, fixed=backend.fixed_shapes(names.BASE))
        return cls(manifest, target, directory, load_heads(manifest, backend))

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

    @cached_property
    def _optional_tokenizer(self) -> Tokenizer | None:
        return load_tokenizer(self._tokenizer_directory)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, loaded on first use.

        Raises:
            ManifestError: The directory holds none: prompts must be token ids, and text is empty.
        """
        if self._optional_tokenizer is None:
            raise ManifestError(
                f"{self._tokenizer_directory} holds no tokenizer: give token ids instead of text, "
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

    def generate(self, prompt: Prompt, config: GenerationConfig | None = None) -> Result:
        """Generate to the end; see `stream`."""
        return self.stream(prompt, config).result()

    def stream(self, prompt: Prompt, config: GenerationConfig | None = None) -> Generation:
        """Generate, handing out text and tokens as soon as they are decided.

        Args:
            prompt: A text, or token ids.
            config: How to generate; plain greedy decoding by default.

        Raises:
            PromptError: The prompt is empty, does not fit the context, or has an id outside the vocabulary.
            ConfigError: The method or an option is unknown, or the method does not go with the sampling; or, at the
                first piece, the engine is generating already.
        """
        config = config or GenerationConfig()
        token_ids = self.encode(prompt) if isinstance(prompt, str) else list(prompt)
        self.check_prompt(token_ids)
        model, stats = self.manifest.model, Stats()
        eos_ids = () if config.ignore_eos else model.eos_ids
        sampler = Sampler(config.sampling, token_ids, vocab=model.vocab)
        drafter = make_drafter(
            config.method, config.options, vocab=model.vocab, eos_ids=eos_ids, heads=self._heads, sampler=sampler
        )
        acceptance = acceptance_rule(sampler)
        stopper = StopChecker(
            detokenizer=Detokenizer(self._optional_tokenizer.decode if self._optional_tokenizer else _no_text),
            eos_ids=eos_ids,
            stop=config.stop,
            max_new_tokens=min(config.max_new_tokens, self.max_length - len(token_ids)),
        )
        emissions = self._emissions(token_ids, drafter, acceptance, stopper, stats)
        return Generation(emissions, stats, acceptance.guarantee)

    def next_logits(self, token_ids: Sequence[int]) -> Tensor:
        """The target's logits after a text: [vocab].

        Raises:
            PromptError: As `stream`.
            ConfigError: The engine is generating.
        """
        self.check_prompt(token_ids)
        with self._claimed():
            self._target.prefill(token_ids[:-1])
            verified = self._target.verify([TreeBuilder(token_ids[-1]).build()], {names.LOGITS})
            return verified.outputs[0].tensors[names.LOGITS][-1].clone()

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

    def _emissions(
        self, prompt: Sequence[int], drafter: Drafter, acceptance: Acceptance, stopper: StopChecker, stats: Stats
    ) -> Generator[Emission, None, None]:
        blocks = decode(
            prompt,
            target=self._target,
            drafter=drafter,
            max_new_tokens=stopper.remaining,
            stats=stats,
            acceptance=acceptance,
        )
        with self._claimed():
            for block in blocks:
                with stats.time("other"):
                    emission = stopper.push(block)
                if emission.text or emission.token_ids or emission.finish_reason:
                    yield emission
                if emission.finish_reason:
                    return

    @contextmanager
    def _claimed(self) -> Iterator[None]:
        """Hold the cache for one generation."""
        if not self._lock.acquire(blocking=False):
            raise ConfigError("this engine is generating already: finish or close that generation first")
        try:
            yield
        finally:
            self._lock.release()


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
