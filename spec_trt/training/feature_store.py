"""A file that keeps what the base makes of every sequence, so that later epochs need not run it."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spec_trt.training.conversations import TokenSequence

__all__ = ["FeatureStore"]


class FeatureStore:
    """Outputs in bf16, in a directory; what lies there of other sequences or another base is replaced.

    Args:
        directory: Where.
        sequences: All that there are; their place in this list is their index.
        width: Numbers per token.
        base: What tells the base and its outputs from others.
    """

    def __init__(self, directory: Path, sequences: Sequence[TokenSequence], width: int, base: str) -> None:
        self._lengths = [len(sequence.input_ids) for sequence in sequences]
        self._starts = np.concatenate([[0], np.cumsum(self._lengths)])
        directory.mkdir(parents=True, exist_ok=True)
        key = _key(sequences, width, base)
        tokens = int(self._starts[-1])
        fresh = _kept_key(directory) != key
        self._states = _map(directory / "states.bin", np.int16, (tokens, width), fresh)
        self._argmax = _map(directory / "argmax.bin", np.int32, (tokens,), fresh)
        self._done = _map(directory / "done.bin", np.bool_, (len(sequences),), fresh)
        (directory / "store.json").write_text(json.dumps({"key": key}))

    def get(self, index: Tensor, nodes: int) -> tuple[Tensor, Tensor] | None:
        """States [batch, nodes, width] and argmax [batch, nodes], padded; None unless all are there."""
        rows = index.tolist()
        if not all(self._done[row] for row in rows):
            return None
        states = torch.zeros(len(rows), nodes, self._states.shape[1], dtype=torch.bfloat16)
        argmax = torch.full((len(rows), nodes), -1, dtype=torch.int64)
        for place, row in enumerate(rows):
            part = slice(self._starts[row], self._starts[row + 1])
            length = self._lengths[row]
            states[place, :length] = torch.from_numpy(self._states[part].copy()).view(torch.bfloat16)
            argmax[place, :length] = torch.from_numpy(self._argmax[part].astype(np.int64))
        return states, argmax

    def put(self, index: Tensor, states: Tensor, argmax: Tensor) -> None:
        """Keep a batch's outputs, padding left out."""
        bits = states.to("cpu", torch.bfloat16).contiguous().view(torch.int16).numpy()
        for place, row in enumerate(index.tolist()):
            part = slice(self._starts[row], self._starts[row + 1])
            self._states[part] = bits[place, : self._lengths[row]]
            self._argmax[part] = argmax[place, : self._lengths[row]].cpu().numpy()
            self._done[row] = True


def _key(sequences: Sequence[TokenSequence], width: int, base: str) -> str:
    digest = hashlib.sha256(f"{base} {width}".encode())
    for sequence in sequences:
        digest.update(repr((sequence.input_ids, sequence.loss_mask)).encode())
    return digest.hexdigest()


def _kept_key(directory: Path) -> str | None:
    file = directory / "store.json"
    return json.loads(file.read_text())["key"] if file.is_file() else None


def _map(file: Path, dtype: type[np.generic], shape: tuple[int, ...], fresh: bool) -> "np.memmap[tuple[int, ...], np.dtype[np.generic]]":
    return np.memmap(file, dtype=dtype, mode="w+" if fresh else "r+", shape=shape)
