"""Files that keep what the base makes of every sequence, so that later epochs and trainings need not run it."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from spec_trt.training.conversations import TokenSequence

__all__ = ["FeatureStore"]


class FeatureStore:
    """One file per sequence, in bf16, named by the hash of the base and the sequence.

    Heads of different kinds share a store: each reads the outputs that it asks for, and a file that lacks one is
    written again.

    Args:
        directory: Where; other sequences' files do no harm there.
        sequences: Those asked for; their place in this list is their index.
        base: The fingerprint of the base.
    """

    def __init__(self, directory: Path, sequences: Sequence[TokenSequence], base: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._files = [directory / f"{_key(sequence, base)}.safetensors" for sequence in sequences]

    def get(self, index: Tensor, nodes: int, names: Sequence[str]) -> dict[str, Tensor] | None:
        """The outputs of a batch.

        Args:
            index: [batch]: places of the sequences.
            nodes: Columns to pad to: numbers with 0, ids with -1.
            names: Of the outputs.

        Returns:
            By name, [batch, nodes, ...]; None unless all are there.
        """
        parts = []
        for place in index.tolist():
            part = _read(self._files[place], names)
            if part is None:
                return None
            parts.append(part)
        return {name: _pad([part[name] for part in parts], nodes) for name in names}

    def put(self, index: Tensor, lengths: Sequence[int], outputs: Mapping[str, Tensor]) -> None:
        """Keep a batch's outputs, [batch, nodes, ...] by name, padding left out."""
        for row, (place, length) in enumerate(zip(index.tolist(), lengths, strict=True)):
            kept = {
                name: output[row, :length].to("cpu", torch.bfloat16 if output.is_floating_point() else torch.int32)
                for name, output in outputs.items()
            }
            partial = self._files[place].with_suffix(f".{os.getpid()}.tmp")
            save_file({name: output.contiguous() for name, output in kept.items()}, partial)
            partial.rename(self._files[place])


def _key(sequence: TokenSequence, base: str) -> str:
    return hashlib.sha256(f"{base} {sequence.input_ids} {sequence.loss_mask}".encode()).hexdigest()[:32]


def _read(file: Path, names: Sequence[str]) -> dict[str, Tensor] | None:
    try:
        with safe_open(file, "pt") as stored:
            return {name: stored.get_tensor(name) for name in names}
    except (FileNotFoundError, SafetensorError):
        return None


def _pad(parts: Sequence[Tensor], nodes: int) -> Tensor:
    dtype, fill = (parts[0].dtype, 0) if parts[0].is_floating_point() else (torch.int64, -1)
    padded = torch.full((len(parts), nodes, *parts[0].shape[1:]), fill, dtype=dtype)
    for row, part in enumerate(parts):
        padded[row, : len(part)] = part
    return padded
