"""Greedy decoding as plainly as it can be written: a loop over the base graph in ONNX Runtime."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from spec_trt import names
from spec_trt.manifest import ModelFacts, load_manifest

CHUNK = 5


class GreedyLoop:
    """One sequence, its whole cache in two lists."""

    def __init__(self, bundle: Path) -> None:
        self.facts: ModelFacts = load_manifest(bundle).model
        self.session = onnxruntime.InferenceSession(bundle / "base.onnx", providers=["CPUExecutionProvider"])
        empty = np.zeros((1, self.facts.kv_heads, 0, self.facts.head_dim), np.float32)
        self.cache = {name: empty for layer in range(self.facts.layers) for name in _buffers(layer)}
        self.past = 0

    def generate(self, prompt: list[int], count: int) -> list[int]:
        """Prefill `prompt[:-1]` in chunks without logits rows, then decode node by node."""
        for start in range(0, len(prompt) - 1, CHUNK):
            self.run(prompt[start : min(start + CHUNK, len(prompt) - 1)], rows=[])
        tokens = [prompt[-1]]
        while len(tokens) <= count:
            tokens.append(int(self.run(tokens[-1:], rows=[0])[names.ARGMAX][0, 0]))
        return tokens[1:]

    def run(self, tokens: list[int], rows: list[int], extra: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
        """Run a chain of tokens, commit all its rows, and return the outputs, `extra` ones too."""
        nodes = len(tokens)
        outputs = [names.LOGITS, names.ARGMAX, *extra]
        for layer in range(self.facts.layers):
            outputs += [names.new_key(layer), names.new_value(layer)]
        feeds = {
            names.INPUT_IDS: np.array([tokens]),
            names.POSITION_IDS: self.past + np.arange(nodes)[None],
            names.PAST_LENS: np.array([self.past]),
            names.TREE_MASK: np.tril(np.ones((1, nodes, nodes), np.bool_)),
            names.LOGITS_ROWS: np.array([rows], np.int64),
            **self.cache,
        }
        found = dict(zip(outputs, self.session.run(outputs, feeds), strict=True))
        for layer in range(self.facts.layers):
            for buffer, new in zip(_buffers(layer), (names.new_key(layer), names.new_value(layer)), strict=True):
                self.cache[buffer] = np.concatenate([self.cache[buffer], found[new]], axis=2)
        self.past += nodes
        return found


def _buffers(layer: int) -> tuple[str, str]:
    return names.past_key(layer), names.past_value(layer)
