"""Draft heads without a library: exact where the target's next token can be known, and strict about bookkeeping."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spec_trt import names
from spec_trt.manifest import EagleFacts, MedusaFacts
from spec_trt.runtime.draft_model import DraftModel
from spec_trt.runtime.drafters.heads import Heads
from spec_trt.runtime.medusa_model import MedusaModel
from tests.runtime.fake_session import HIDDEN, NextToken, fake_facts

TREE = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 0, 1], [0, 0, 0, 0]]


def fake_heads(next_token: NextToken, *, vocab: int, version: int = 1, chunk: int = 7) -> Heads:
    """Heads that draft with `next_token`: EAGLE's from the whole text, Medusa's from one token."""
    return Heads(medusa=fake_medusa(next_token, vocab=vocab), eagle=fake_eagle(next_token, vocab, version, chunk=chunk))


def fake_medusa(next_token: NextToken, *, vocab: int) -> MedusaModel:
    top_k = min(4, vocab)
    facts = MedusaFacts(
        heads=4, layers=1, top_k=top_k, draft_vocab=vocab, draft_ids=None, tree=fitting(top_k), source="fake"
    )
    return MedusaModel(FakeHead(_medusa(next_token, vocab)), facts, fake_facts(vocab=vocab))


def fake_eagle(next_token: NextToken, vocab: int, version: int = 1, *, chunk: int = 64) -> DraftModel:
    top_k = min(4, vocab)
    facts = EagleFacts(
        version=version,
        layers=1,
        kv_heads=1,
        head_dim=2,
        hidden=HIDDEN,
        feature_layers=[2, 3, 4] if version == 3 else [],
        top_k=top_k,
        draft_vocab=vocab,
        draft_ids=None,
        tree=fitting(top_k),
        source="fake",
    )
    fuse = FakeHead(_fuse) if version == 3 else None
    session = FakeHead(_eagle(next_token, vocab))
    return DraftModel(session, facts, fake_facts(vocab=vocab), fuse=fuse, chunk=chunk, cache_step=4)


def fitting(top_k: int) -> list[list[int]]:
    return [path for path in TREE if max(path) < top_k]


Arrays = Mapping[str, NDArray[Any]]
Run = Callable[[Arrays, Arrays], None]


@dataclass
class FakeHead:
    """A session that runs a function on what is bound to it."""

    function: Run
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    windows: list[tuple[int, ...]] = field(default_factory=list)

    def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> "FakeHeadBinding":
        return FakeHeadBinding(self, _arrays(inputs), _arrays(outputs))


@dataclass
class FakeHeadBinding:
    head: FakeHead
    inputs: Arrays
    outputs: Arrays

    def run(self) -> None:
        if names.TREE_MASK in self.inputs:
            self.head.windows.append(self.inputs[names.TREE_MASK].shape[1:])
        self.head.function(self.inputs, self.outputs)


def _arrays(tensors: Mapping[str, Tensor]) -> Arrays:
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def _candidates(outputs: Arrays, place: tuple[int, ...], token: int, vocab: int) -> None:
    """The token first, then those above it, each a factor of e less likely."""
    ids = outputs[names.TOKEN_IDS][place]
    ids[:] = (token + np.arange(len(ids))) % vocab
    if names.LOG_PROBS in outputs:
        outputs[names.LOG_PROBS][place] = -0.1 - np.arange(len(ids))
    if names.DRAFT_LOGITS in outputs:
        outputs[names.DRAFT_LOGITS][place] = -1 - (np.arange(vocab) - token) % vocab


def _medusa(next_token: NextToken, vocab: int) -> Run:
    def run(inputs: Arrays, outputs: Arrays) -> None:
        text = [int(inputs[names.HIDDEN_STATES][0, 0, 0])]
        text.append(next_token(text))
        for head in range(outputs[names.TOKEN_IDS].shape[2]):
            text.append(next_token(text))
            _candidates(outputs, (0, 0, head), text[-1], vocab)

    return run


def _fuse(inputs: Arrays, outputs: Arrays) -> None:
    first, second, third = np.split(inputs[names.FEATURES], 3, axis=-1)
    assert (first == second - 1).all()
    assert (first == third - 2).all()
    outputs[names.NEXT_FEATURES][:] = first


def _eagle(next_token: NextToken, vocab: int) -> Run:
    """Rows of the cache are (token, position) and (feature, position); what a row sees must be one text."""

    def run(inputs: Arrays, outputs: Arrays) -> None:
        ids, positions = inputs[names.INPUT_IDS][0], inputs[names.POSITION_IDS][0]
        features = inputs[names.FEATURES][0]
        assert (features == features[:, :1]).all()
        own = np.stack([ids, positions, features[:, 0]], axis=-1)
        outputs[names.new_key(0)][0, 0] = own[:, :2]
        outputs[names.new_value(0)][0, 0] = own[:, 1:]
        outputs[names.NEXT_FEATURES][0] = ids[:, None]
        keys = np.concatenate([inputs[names.past_key(0)][0, 0], inputs[names.past_value(0)][0, 0, :, 1:]], axis=-1)
        committed = int(inputs[names.PAST_LENS][0])
        for node, mask in enumerate(inputs[names.TREE_MASK][0]):
            tentative = len(mask) - len(own)
            assert len(keys) >= committed + tentative
            drafted = keys[committed : committed + tentative]
            text = _text(np.concatenate([keys[:committed], drafted[mask[:tentative]], own[mask[tentative:]]]))
            _candidates(outputs, (0, node), next_token(text), vocab)

    return run


def _text(seen: NDArray[Any]) -> list[int]:
    """The text that a row sees, its own token last: the rows' tokens behind the first one's feature."""
    rows = seen.astype(int).tolist()
    assert [position for _, position, _ in rows] == list(range(len(rows)))
    assert [feature for _, _, feature in rows[1:]] == [token for token, _, _ in rows[:-1]]
    return [rows[0][2], *(token for token, _, _ in rows)]
