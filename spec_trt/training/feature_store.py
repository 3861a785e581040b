"""Files that keep what the base makes of every sequence, so that later epochs and trainings need not run it."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from spec_trt.training.conversations import TokenSequence

__all__ = ["FeatureStore"]


class FeatureStore:
    """One file per sequence, in bf16, named by the hash of the base and the sequence.

    Args:
        directory: Where; other sequences' files do no harm there.
        sequences: Those asked for; their place in this list is their index.
        base: What tells the base and its outputs from others.
    """

    def __init__(self, directory: Path, sequences: Sequence[TokenSequence], base: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._files = [directory / f"{_key(sequence, base)}.safetensors" for sequence in sequences]

    def get(self, index: Tensor, nodes: int) -> tuple[Tensor, Tensor] | None:
        """States [batch, nodes, width] and argmax [batch, nodes], padded; None unless all are there."""
        parts = [_read(self._files[row]) for row in index.tolist()]
        found = [part for part in parts if part is not None]
        if len(found) < len(parts):
            return None
        states = torch.zeros(len(parts), nodes, found[0]["states"].shape[1], dtype=torch.bfloat16)
        argmax = torch.full((len(parts), nodes), -1, dtype=torch.int64)
        for row, part in enumerate(found):
            length = len(part["argmax"])
            states[row, :length] = part["states"]
            argmax[row, :length] = part["argmax"]
        return states, argmax

    def put(self, index: Tensor, lengths: Sequence[int], states: Tensor, argmax: Tensor) -> None:
        """Keep a batch's outputs, padding left out."""
        for row, (place, length) in enumerate(zip(index.tolist(), lengths, strict=True)):
            kept = {
                "states": states[row, :length].to("cpu", torch.bfloat16).contiguous(),
                "argmax": argmax[row, :length].to("cpu", torch.int32).contiguous(),
            }
            partial = self._files[place].with_suffix(f".{os.getpid()}.tmp")
            save_file(kept, partial)
            partial.rename(self._files[place])


def _key(sequence: TokenSequence, base: str) -> str:
    return hashlib.sha256(f"{base} {sequence.input_ids} {sequence.loss_mask}".encode()).hexdigest()[:32]


def _read(file: Path) -> dict[str, Tensor] | None:
    try:
        return load_file(file)
    except (FileNotFoundError, SafetensorError):
        return None
