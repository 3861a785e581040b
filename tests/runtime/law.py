"""The law of an output on a tiny vocabulary: by enumeration, and by drawing many of them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from spec_trt import names
from spec_trt.manifest import EagleFacts, MedusaFacts
from spec_trt.runtime.acceptance_rule import acceptance_rule
from spec_trt.runtime.draft_model import DraftStep
from spec_trt.runtime.drafters import make_drafter
from spec_trt.runtime.drafters.drafter import Drafter, PassOutput
from spec_trt.runtime.drafters.heads import HeadName, Heads
from spec_trt.runtime.live_sequence import LiveSequence
from spec_trt.runtime.medusa_model import MedusaDraft
from spec_trt.runtime.sampler import Sampler
from spec_trt.runtime.sampling import Sampling
from spec_trt.runtime.target import Verified
from spec_trt.runtime.tree import Tree
from tests.runtime.decoding import decode, tokens

VOCAB, COUNT = 5, 3
PROMPT = [4, 0, 1, 2, 3, 4, 0, 1]
TREE = [[0], [1], [2], [0, 0], [0, 1], [1, 0]]

_RANDOM = np.random.default_rng(20)
TARGET_LOGITS = _RANDOM.standard_normal((VOCAB, VOCAB, VOCAB)).astype(np.float32)
TARGET_LOGITS[:, np.arange(VOCAB), np.roll(np.arange(VOCAB), -1)] += 1  # as the prompt goes on
DRAFT_LOGITS = (0.5 * TARGET_LOGITS + _RANDOM.standard_normal(TARGET_LOGITS.shape)).astype(np.float32)
DRAFT_ORDER = np.argsort(-DRAFT_LOGITS, axis=-1)
DRAFT_LOG_PROBS = torch.from_numpy(-np.sort(-DRAFT_LOGITS, axis=-1)).log_softmax(-1).numpy()
MEDUSA_CANDIDATES = _RANDOM.permuted(np.tile(np.arange(VOCAB), (VOCAB, 2, 1)), axis=-1)


@dataclass
class TableTarget:
    """A target whose logits are a table over the last two tokens."""

    committed: list[int] = field(default_factory=list)

    @property
    def cache(self) -> "TableTarget":
        return self

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.array([len(self.committed)])

    def prefill(self, prompt: Sequence[int], needs: frozenset[str]) -> PassOutput | None:
        self.committed = list(prompt)
        return _pass_output(np.array(prompt), np.zeros((len(prompt), VOCAB), dtype=np.float32)) if needs else None

    def verify(self, trees: Sequence[Tree], _needs: frozenset[str]) -> Verified:
        [self.tree] = trees
        before = self.tree.tokens[self.tree.parents]
        before[0] = self.committed[-1]
        logits = TARGET_LOGITS[before, self.tree.tokens]
        return Verified(outputs=[_pass_output(self.tree.tokens, logits)], new_rows=np.empty(0))

    def commit(self, _new_rows: object, paths: Sequence[Sequence[int]]) -> None:
        self.committed += self.tree.tokens[list(paths[0])].tolist()


def _pass_output(tokens: NDArray[np.int64], logits: NDArray[np.float32]) -> PassOutput:
    tensors: dict[str, Any] = {names.LOGITS: logits, names.HIDDEN_STATES: tokens}  # arrays will do
    return PassOutput(argmax=logits.argmax(axis=-1), tensors=tensors)


class TableMedusa:
    """Heads whose candidates are a table over one token."""

    facts = MedusaFacts(heads=2, layers=1, top_k=VOCAB, draft_vocab=VOCAB, draft_ids=None, tree=TREE, source="a table")

    def take(self, hidden_states, row, *, lasting=False):  # noqa: ARG002 - all numbers stay here
        self.hidden_state = hidden_states[row]

    def draft(self):
        token_ids = MEDUSA_CANDIDATES[self.hidden_state]
        return MedusaDraft(token_ids=token_ids, log_probs=np.full(token_ids.shape, -0.1, dtype=np.float32))


class TableDraft:
    """A draft model whose logits are a table over the last two tokens; a row's feature is its token."""

    needs = (names.HIDDEN_STATES,)
    facts = EagleFacts(
        version=1,
        layers=1,
        kv_heads=1,
        head_dim=1,
        hidden=1,
        feature_layers=[],
        top_k=VOCAB,
        draft_vocab=VOCAB,
        draft_ids=None,
        tree=TREE,
        source="a table",
    )

    def reset(self, _rows: int, *, keep: int) -> None:
        assert keep == 0

    def take(self, features, nodes, tokens, *, lasting):  # noqa: ARG002 - all numbers stay here
        self.newest = features[names.HIDDEN_STATES][nodes[-1]], tokens[-1]

    def extend(self, *, logits):  # noqa: ARG002 - a table has them anyway
        feature, token = self.newest
        return _draft_step(0, np.array([feature]), np.array([token]))

    def expand(self, step: DraftStep, rows: Sequence[int], tokens: Sequence[int]) -> DraftStep:
        return _draft_step(step.level + 1, step.features[rows], np.array(tokens))


def _draft_step(level: int, before: NDArray[np.int64], tokens: NDArray[np.int64]) -> DraftStep:
    return DraftStep(
        level=level,
        token_ids=DRAFT_ORDER[before, tokens],
        log_probs=DRAFT_LOG_PROBS[before, tokens],
        features=tokens,
        visible=np.empty((len(tokens), 0), dtype=np.bool_),
        logits=DRAFT_LOGITS[before, tokens],
    )


_TABLES: dict[HeadName, Any] = {"medusa": TableMedusa(), "eagle": TableDraft()}
HEADS = Heads(**_TABLES)


def expected_law(sampling: Sampling) -> dict[tuple[int, ...], float]:
    """The probability of every output of COUNT tokens, by transformers' own processors."""

    @cache
    def probs(text):
        return reference_probs(TARGET_LOGITS[text[-2], text[-1]], text, sampling).tolist()

    def probability(output: tuple[int, ...]) -> float:
        places = range(len(output))
        return float(np.prod([probs((*PROMPT, *output[:place]))[output[place]] for place in places]))

    return {output: probability(output) for output in product(range(VOCAB), repeat=COUNT)}


def reference_probs(logits: NDArray[np.float32], text: Sequence[int], sampling: Sampling):
    """[vocab] float64: what transformers makes of logits behind a text."""
    processors = LogitsProcessorList()
    if sampling.repetition_penalty != 1:
        processors.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if sampling.temperature != 1:
        processors.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        processors.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        processors.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        processors.append(MinPLogitsWarper(sampling.min_p))
    scores = processors(torch.tensor([list(text)]), torch.from_numpy(logits)[None].double())
    return scores[0].softmax(-1)


@dataclass(kw_only=True)
class Draws:
    """Outputs by how often they came, and the passes that drawing them took."""

    outputs: Counter[tuple[int, ...]]
    passes: int
    emitted: int

    @property
    def accept_length(self) -> float:
        return self.emitted / self.passes


def draw_outputs(method: str, options: Mapping[str, object], sampling: Sampling, *, seeds: range) -> Draws:
    """One output per seed, through the decode loop."""
    drawn = Draws(outputs=Counter(), passes=0, emitted=0)
    for seed in seeds:
        sampler = Sampler(replace(sampling, seed=seed), PROMPT, vocab=VOCAB)
        drafter = make_drafter(method, options, vocab=VOCAB, eos_ids=(), heads=HEADS, sampler=sampler)
        sequence = decoded(drafter, sampler)
        drawn.outputs[tuple(tokens(sequence))] += 1
        drawn.passes += sequence.stats.passes
        drawn.emitted += sequence.stats.emitted
    return drawn


def decoded(drafter: Drafter, sampler: Sampler) -> LiveSequence:
    return decode(PROMPT, target=TableTarget(), drafter=drafter, count=COUNT, acceptance=acceptance_rule(sampler))


def chi_square_p_value(found: Counter[tuple[int, ...]], expected: Mapping[tuple[int, ...], float]) -> float:
    """How likely counts as far from their law as these are; outcomes expected less than 5 times count as one.

    An outcome that the law excludes makes it 0.
    """
    total = found.total()
    if any(count and not expected[output] for output, count in found.items()):
        return 0.0
    cells = [(found[output], total * prob) for output, prob in expected.items() if total * prob >= 5]
    rest = (total - sum(count for count, _ in cells), total - sum(mean for _, mean in cells))
    cells += [rest] if rest[1] > 1e-6 * total else []
    statistic = sum((count - mean) ** 2 / mean for count, mean in cells)
    freedom = torch.tensor((len(cells) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, torch.tensor(statistic / 2, dtype=torch.float64)))
