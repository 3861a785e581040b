"""Requests taken in: all that was asked for is checked before anything runs."""

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from numbers import Integral
from pathlib import Path

from torch import Tensor

from spec_trt import names
from spec_trt.errors import ConfigError, ManifestError, PromptError
from spec_trt.manifest import Manifest
from spec_trt.runtime.accept import Acceptance, GreedyAcceptance
from spec_trt.runtime.acceptance_rule import acceptance_rule
from spec_trt.runtime.allowance import BudgetName
from spec_trt.runtime.cache_memory import copied
from spec_trt.runtime.costs import Costs
from spec_trt.runtime.detokenizer import Detokenizer
from spec_trt.runtime.drafters import METHODS, make_drafter
from spec_trt.runtime.drafters.autoregressive import AutoregressiveDrafter
from spec_trt.runtime.drafters.drafter import Drafter, PassOutput
from spec_trt.runtime.drafters.heads import Heads
from spec_trt.runtime.engine_size import max_length
from spec_trt.runtime.generation import GenerationConfig
from spec_trt.runtime.live_sequence import LiveSequence
from spec_trt.runtime.sampler import Sampler
from spec_trt.runtime.stop import StopChecker
from spec_trt.runtime.tree import ROOT, Tree
from spec_trt.tokenizer import Tokenizer, load_tokenizer

__all__ = ["KeptLogits", "Reception"]


class KeptLogits(GreedyAcceptance):
    """Accepts nothing, and keeps the logits behind the root.

    Attributes:
        logits: [vocab], once a pass has been accepted.
    """

    needs = frozenset({names.LOGITS})
    logits: Tensor

    def accept(self, tree: Tree, out: PassOutput) -> tuple[list[int], int]:
        """See `Acceptance.accept`."""
        self.logits = copied(out.tensors[names.LOGITS][ROOT])
        return super().accept(tree, out)


class Reception:
    """Makes sequences that are ready to be decoded of what is asked of an engine.

    Args:
        manifest: The engine's.
        directory: Where its tokenizer's files and measured costs are.
        heads: Its draft heads; none of them is run.
    """

    def __init__(self, manifest: Manifest, directory: Path, heads: Heads) -> None:
        self._manifest, self._directory, self._heads = manifest, directory, heads

    def prepare(self) -> None:
        """Load what the first request would wait for; costs that can't be read are for who asks for them."""
        _ = self._optional_tokenizer
        with suppress(ManifestError):
            _ = self.costs

    @cached_property
    def costs(self) -> Costs | None:
        """What passes cost on this machine; None where nobody has measured it."""
        return Costs.load(self._directory)

    @cached_property
    def _optional_tokenizer(self) -> Tokenizer | None:
        return load_tokenizer(self._directory)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, loaded on first use.

        Raises:
            ManifestError: The directory holds none.
        """
        if self._optional_tokenizer is None:
            raise ManifestError(
                f"{self._directory} holds no tokenizer: give token ids instead of text, "
                "or export again from a model that has one"
            )
        return self._optional_tokenizer

    def encode(self, text: str, *, chat: bool = False) -> list[int]:
        """Token ids of a prompt; see `Engine.encode`."""
        if not text:
            raise PromptError("the prompt is empty: expected some text")
        if not _is_unicode(text):
            raise PromptError("the prompt is not valid text: expected UTF-8")
        return self.tokenizer.encode_chat([{"role": "user", "content": text}]) if chat else self.tokenizer.encode(text)

    def check_prompt(self, token_ids: Sequence[int]) -> None:
        """Refuse a prompt that can't be run; see `Engine.check_prompt`."""
        model, longest = self._manifest.model, max_length(self._manifest)
        if not token_ids:
            raise PromptError("the prompt is empty: expected at least one token")
        if len(token_ids) >= longest:
            built = longest < model.max_positions
            holds, remedy = (
                ("engine", ", or build it again with a larger --max-length") if built else ("model's context", "")
            )
            raise PromptError(
                f"the prompt has {len(token_ids)} tokens, the {holds} holds {longest} and needs room for at "
                f"least one more: shorten the prompt{remedy}"
            )
        outside = [token for token in token_ids if not 0 <= token < model.vocab]
        if outside:
            raise PromptError(f"token id {outside[0]} is outside the model's vocabulary of {model.vocab}")

    def take(self, prompt: str | Sequence[int], config: GenerationConfig, timeout: float | None) -> LiveSequence:
        """The sequence of a request; see `Scheduler.submit`."""
        self._check(config, timeout)
        token_ids = self.encode(prompt) if isinstance(prompt, str) else _token_ids(prompt)
        self.check_prompt(token_ids)
        model = self._manifest.model
        eos_ids = () if config.ignore_eos else model.eos_ids
        sampler = Sampler(config.sampling, token_ids, vocab=model.vocab)

        def draft(heads: Heads) -> Drafter:
            return make_drafter(
                config.method, config.options, vocab=model.vocab, eos_ids=eos_ids, heads=heads, sampler=sampler
            )

        draft(self._heads)  # what is wrong with the options is known now
        acceptance = acceptance_rule(sampler)
        room = max_length(self._manifest) - len(token_ids)
        return LiveSequence(
            token_ids,
            draft=draft,
            method=config.method,
            head=METHODS[config.method].head,
            budget=self._budget(config, acceptance),
            acceptance=acceptance,
            stopper=self._stopper(min(config.max_new_tokens, room), eos_ids, config.stop),
            log_probs=config.log_probs,
            timeout=timeout,
        )

    def take_for_logits(self, token_ids: Sequence[int]) -> tuple[LiveSequence, KeptLogits]:
        """The sequence of a single pass, and what has the logits behind the text once it has run."""
        self.check_prompt(token_ids)
        kept = KeptLogits()
        sequence = LiveSequence(
            token_ids, draft=lambda _heads: AutoregressiveDrafter(), acceptance=kept, stopper=self._stopper(1)
        )
        return sequence, kept

    def _check(self, config: GenerationConfig, timeout: float | None) -> None:
        if not isinstance(config, GenerationConfig):
            raise ConfigError(f"config must be a GenerationConfig: found {config!r}; give GenerationConfig(...)")
        if timeout is not None and (
            not isinstance(timeout, int | float) or isinstance(timeout, bool) or not timeout > 0
        ):
            raise ConfigError(f"a timeout must be more than 0 seconds: found {timeout!r}; leave it out for none")

    def _budget(self, config: GenerationConfig, acceptance: Acceptance) -> int | BudgetName:
        """What sizes the trees. Where an output depends on what was drafted, other requests must not size it."""
        if config.budget != "auto":
            return config.budget
        if acceptance.guarantee != "token for token":
            raise ConfigError(
                "budget auto sizes trees by what earlier requests have shown, with which the output of drawn drafts "
                "and of typical acceptance would change: use budget fixed, or a number of nodes"
            )
        measured = {} if self.costs is None else {"autoregressive": None, **self.costs.draft}
        if config.method not in measured:
            unknown = f"{config.method}'s drafts" if measured else "passes"
            raise ConfigError(
                f"budget auto needs to know what {unknown} cost here: run `spec-trt profile {self._directory} --save`"
            )
        return config.budget

    def _stopper(self, limit: int, eos_ids: Collection[int] = (), stop: Sequence[str] = ()) -> StopChecker:
        tokenizer = self._optional_tokenizer
        detokenizer = Detokenizer(tokenizer.decode if tokenizer else _no_text)
        return StopChecker(detokenizer=detokenizer, eos_ids=eos_ids, stop=stop, max_new_tokens=limit)


def _token_ids(prompt: object) -> list[int]:
    """Token ids as a list, from a list, an array or a tensor of one axis."""
    listed = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    if isinstance(listed, bytes) or not isinstance(listed, Iterable):
        raise PromptError(f"a prompt must be a text or token ids, found {type(prompt).__name__}: give one of the two")
    token_ids = [*listed]
    for token in token_ids:
        if not isinstance(token, Integral) or isinstance(token, bool):
            raise PromptError(f"token ids must be integers, found {token!r:.40}: give a text, or a list of integers")
    return [int(token) for token in token_ids]


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
