"""A session without a library: its cache rows hold tokens, its answers depend on what a node can see."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spec_trt import names
from spec_trt.manifest import ModelFacts

NextToken = Callable[[Sequence[int]], int]
Logits = Callable[[Sequence[int]], NDArray[np.float32]]

HIDDEN = 3


def fake_facts(
    *, vocab: int = 16, max_positions: int = 512, eos_ids: Sequence[int] = (), hidden: int = HIDDEN
) -> ModelFacts:
    return ModelFacts(
        family="fake",
        dtype="fp32",
        layers=2,
        heads=2,
        kv_heads=1,
        head_dim=2,
        hidden=hidden,
        vocab=vocab,
        max_positions=max_positions,
        eos_ids=list(eos_ids),
    )


def text_features(tokens: Sequence[int]) -> dict[str, Tensor]:
    """What the base graph says of tokens: a feature is its token, EAGLE-3's each their own number more."""
    hidden = torch.tensor(list(tokens)).float()[:, None].expand(-1, HIDDEN)
    return {names.HIDDEN_STATES: hidden} | {names.feature(index): hidden + index for index in range(3)}


@dataclass
class FakeSession:
    """The base graph's interface over `next_token` of the visible tokens, in the order of their positions.

    A row of the cache is (token, position) of its node, so a row committed to the wrong place, a mask that
    shows a sibling, or a wrong position changes the answer.
    """

    next_token: NextToken
    logits: Logits | None = None
    vocab: int = 16
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    runs: int = 0
    fail_on_run: int | None = None

    def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> "FakeBinding":
        return FakeBinding(self, dict(inputs), dict(outputs))


@dataclass
class FakeBinding:
    session: FakeSession
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]

    def run(self) -> None:
        self.session.runs += 1
        if self.session.runs == self.session.fail_on_run:
            raise RuntimeError("fault injected")
        ids, positions = self.inputs[names.INPUT_IDS], self.inputs[names.POSITION_IDS]
        rows = torch.stack([ids, positions], dim=-1)[:, None].float()
        for layer in range(2):
            self.outputs[names.new_key(layer)].copy_(rows)
            self.outputs[names.new_value(layer)].copy_(rows + layer)
        for sequence in range(ids.shape[0]):
            self._answer(sequence, rows[sequence, 0])

    def _answer(self, sequence: int, rows: Tensor) -> None:
        for index, node in enumerate(self.inputs[names.LOGITS_ROWS][sequence].tolist()):
            text = self._visible(sequence, rows, node)
            logits = self._logits(text)
            if names.ARGMAX in self.outputs:
                self.outputs[names.ARGMAX][sequence, index] = logits.argmax()
            if names.LOGITS in self.outputs:
                self.outputs[names.LOGITS][sequence, index] = logits
        for name, tensor in text_features(rows[:, 0].tolist()).items():
            if name in self.outputs:
                self.outputs[name][sequence] = tensor

    def _logits(self, text: Sequence[int]) -> Tensor:
        """[vocab]: the model's, or else all on the next token."""
        if self.session.logits is not None:
            return torch.from_numpy(self.session.logits(text))
        return torch.nn.functional.one_hot(torch.tensor(self.session.next_token(text)), self.session.vocab).float()

    def _visible(self, sequence: int, rows: Tensor, node: int) -> list[int]:
        """The tokens that a node sees, checked to be one per position from 0 on."""
        committed = int(self.inputs[names.PAST_LENS][sequence])
        past = self.inputs[names.past_key(1)][sequence, 0, :committed]
        seen = torch.cat([past, rows[self.inputs[names.TREE_MASK][sequence, node, -len(rows) :]]])
        ordered = seen[seen[:, 1].argsort()]
        assert ordered[:, 1].tolist() == list(range(len(ordered)))
        return [int(token) for token in ordered[:, 0]]
