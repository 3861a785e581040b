"""One sequence being decoded."""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from spec_trt import names
from spec_trt.runtime.accept import Acceptance, emitted_tokens
from spec_trt.runtime.allowance import Allowance, BudgetName, Size
from spec_trt.runtime.drafters.drafter import Drafter, PassOutput
from spec_trt.runtime.drafters.heads import HeadName, Heads
from spec_trt.runtime.feed import Feed
from spec_trt.runtime.outlook import Outlook
from spec_trt.runtime.sampler import as_array
from spec_trt.runtime.stats import Stats
from spec_trt.runtime.stop import Emission, FinishReason, StopChecker
from spec_trt.runtime.target import joined
from spec_trt.runtime.tree import ROOT, Tree, root_alone

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LiveSequence"]


class LiveSequence:
    """What drafts for a sequence and accepts, where it ends, what it cost, and who waits for it.

    What its own parts raise ends this sequence alone: the others of its pass go on.

    Attributes:
        prompt: Its tokens.
        read: How many of them have been read, or were there to be taken over.
        text: The prompt, and the tokens of every pass so far.
        acceptance: The rule by which drafts are kept.
        stopper: Where it ends.
        stats: What it cost and gained.
        feed: Where its pieces go.
        method: The speculative method's name.
        head: The trained head that drafts for it.
        budget: Nodes that its trees may have, the root included; or what sizes them.
        outlook: What its drafts have been worth, where its budget is `auto`.
        longest: Tokens that it has at the most in the end.

    Args:
        prompt: At least one token.
        draft: Makes its drafter, of the heads that it is given.
        acceptance: Made for this sequence.
        stopper: Made for this sequence.
        method: See above.
        head: See above.
        budget: See above.
        log_probs: Whether every token comes with its log-probability.
        timeout: Seconds from now on that it may take.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        *,
        draft: Callable[[Heads], Drafter],
        acceptance: Acceptance,
        stopper: StopChecker,
        method: str = "autoregressive",
        head: HeadName | None = None,
        budget: int | BudgetName = "fixed",
        log_probs: bool = False,
        timeout: float | None = None,
    ) -> None:
        self.prompt, self.text = list(prompt), list(prompt)
        self.acceptance, self.stopper, self.method, self.head = acceptance, stopper, method, head
        self.budget: int | BudgetName = budget
        self.outlook: Outlook | None = None
        self.longest = len(self.prompt) + stopper.remaining
        self.stats, self.feed = Stats(prompt_tokens=len(self.prompt)), Feed()
        self._draft, self._wants_log_probs = draft, log_probs
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._cancelled = threading.Event()
        self._allowed = 0
        self.read, self._parts = 0, list[Mapping[str, "Tensor"]]()
        self._log_probs: list[float] = []

    def cancel(self) -> None:
        """Ask for its end, from any thread."""
        self._cancelled.set()

    def end_if_asked(self) -> None:
        """End it where it was cancelled, or has taken too long."""
        if self._cancelled.is_set():
            self.end("cancelled")
        elif self._deadline is not None and time.monotonic() > self._deadline:
            self.end("timeout")

    @property
    def ended(self) -> bool:
        """Whether nothing more comes of it."""
        return self.feed.ended

    def end(self, reason: FinishReason) -> None:
        """End it before its end."""
        if not self.ended:
            with self.failing_alone():
                self._put(self.stopper.end(reason))

    @contextmanager
    def failing_alone(self) -> Iterator[None]:
        """End this sequence with what the block raises."""
        try:
            yield
        except Exception as error:
            self.feed.fail(error)

    def begin(self, heads: Heads, kept: int) -> None:
        """Take a place in a cache.

        Args:
            heads: The place's own.
            kept: First tokens of the prompt whose rows are there already, the head's own included.
        """
        self.read = self.stats.reused_tokens = kept
        self._heads = heads
        with self.failing_alone():
            self._drafter = self._draft(heads)
            self._start_if_read()

    @property
    def is_read(self) -> bool:
        """Whether the prompt is in the cache, all but the last token: that is the first root."""
        return self.read == len(self.prompt) - 1

    def next_part(self, size: int) -> list[int]:
        """The next tokens of the prompt to be read, `size` at the most."""
        return self.prompt[self.read : min(self.read + size, len(self.prompt) - 1)]

    @property
    def prompt_needs(self) -> Collection[str]:
        """Outputs of the base graph that `has_read` takes."""
        return self._drafter.needs

    def has_read(self, outputs: "Mapping[str, Tensor]", size: int) -> None:
        """Take what the target says of the part of the prompt that it has read."""
        self._parts.append(outputs)
        self.read += size
        with self.failing_alone():
            self._start_if_read()

    def _start_if_read(self) -> None:
        if self.is_read:
            with self.stats.time("prefill"):
                self._drafter.start(self.prompt, joined(self._parts))
            self._parts.clear()

    @property
    def needs(self) -> frozenset[str]:
        """Outputs of the base graph that a pass must hand out."""
        wanted = self._drafter.needs | self.acceptance.needs
        return wanted | {names.LOGITS} if self._wants_log_probs else wanted

    def sizes(self) -> Sequence[Size]:
        """The drafter's; see `Drafter.sizes`."""
        return self._drafter.sizes()

    @property
    def backlog(self) -> int:
        """Rows of its text that its head has yet to read before it drafts."""
        return 0 if self.head is None else self._heads.backlog(self.head)

    def propose(self, allowance: Allowance) -> Tree:
        """The drafter's tree."""
        max_depth = self.stopper.remaining - 1
        self._allowed = min(allowance.nodes, max_depth)  # as many places as could be there
        with self.failing_alone(), self.stats.time("draft"):
            return self._drafter.propose(max_depth, allowance)
        return root_alone(self.text[-1])

    def accept(self, tree: Tree, out: PassOutput) -> tuple[list[int], int]:
        """The accepted nodes, the root first, and the extra token; see `Acceptance.accept`."""
        with self.failing_alone(), self.stats.time("accept"):
            path, extra = self.acceptance.accept(tree, out)
            if self._wants_log_probs:
                self._log_probs += _log_probs(out.tensors[names.LOGITS], path, emitted_tokens(tree, path, extra))
            return path, extra
        return [ROOT], 0

    def emit(self, tree: Tree, path: Sequence[int], extra: int) -> None:
        """Hand out what the accepted tokens make certain."""
        if self.ended:
            return
        with self.failing_alone(), self.stats.time("emit"):
            tokens = emitted_tokens(tree, path, extra)
            self.text += tokens
            emission = self.stopper.push(tokens)
        if self.ended:
            return
        self.stats.record_pass(nodes=len(tree), accepted=len(path) - 1)
        self._put(emission)

    def _put(self, emission: Emission) -> None:
        if self._wants_log_probs:
            given = len(emission.token_ids)
            emission = replace(emission, log_probs=self._log_probs[:given])
            del self._log_probs[:given]
        if emission.token_ids or emission.text or emission.finish_reason:
            self.feed.put(emission)

    def observe(self, tree: Tree, out: PassOutput, path: Sequence[int], extra: int) -> None:
        """Let the drafter learn from the pass, unless it was the last; and whoever sizes its trees."""
        if self.ended:
            self._learn(tree, path)
            return
        with self.failing_alone(), self.stats.time("draft"):
            self._drafter.observe(tree, out, path, extra)
            self._learn(tree, path)

    def _learn(self, tree: Tree, path: Sequence[int]) -> None:
        if self.outlook is not None and self.feed.error is None:
            self.outlook.learn(tree, path, self._allowed)


def _log_probs(logits: "Tensor", path: Sequence[int], tokens: Sequence[int]) -> list[float]:
    """The target's own log-probability of each token, behind the node of a path that it follows: before sampling."""
    found = []
    for node, token in zip(path, tokens, strict=True):
        scores = as_array(logits[node])
        scores -= scores.max()
        found.append(float(scores[token] - np.log(np.exp(scores).sum())))
    return found
