"""The reduced vocabulary of a draft head: which of the target's ids its rows stand for."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from spec_trt.errors import ModelError

__all__ = ["MAPS", "draft_ids_in", "draft_ids_of", "draft_vocab_of", "needed_maps", "offsets_of", "presence_of"]

MAPS = ("d2t", "t2d")


def draft_vocab_of(config: Mapping[str, Any], found: Mapping[str, Tensor], vocab: int, source: str) -> int:
    """Size of the draft's vocabulary: what the config says, else the rows of `d2t`, else the target's.

    Raises:
        ModelError: The config says something else than a positive number.
    """
    size = config.get("draft_vocab_size")
    if size is None:
        size = found["d2t"].numel() if "d2t" in found else vocab
    if type(size) is not int or not 0 < size <= vocab:
        raise ModelError(f"{source} has draft_vocab_size {size}: expected at most {vocab}, the target's vocabulary")
    return size


def needed_maps(found: Mapping[str, Tensor], draft_vocab: int, vocab: int) -> dict[str, list[int]]:
    """The shapes of the maps that a checkpoint must hold: `d2t` for a reduced vocabulary, and what it holds anyway."""
    needed = {"d2t": [draft_vocab]} if "d2t" in found or draft_vocab != vocab else {}
    return needed | ({"t2d": [vocab]} if "t2d" in found else {})


def draft_ids_in(found: Mapping[str, Tensor], vocab: int, source: str) -> list[int] | None:
    """The target's id of every draft row, ascending; None where the vocabulary is the whole.

    Raises:
        ModelError: As `draft_ids_of`.
    """
    if "d2t" not in found:
        return None
    ids = draft_ids_of(found["d2t"], found.get("t2d"), vocab, source)
    return None if len(ids) == vocab else ids


def draft_ids_of(d2t: Tensor, t2d: Tensor | None, vocab: int, source: str) -> list[int]:
    """The target's id of every draft row, ascending.

    Args:
        d2t: [draft_vocab] integers: offsets (id = row + d2t[row]), or in some checkpoints the ids themselves.
        t2d: [vocab] bool: which ids there are; where it is given it says which of the two `d2t` is.
        vocab: Of the target.
        source: The checkpoint's name.

    Raises:
        ModelError: It is neither, or `t2d` contradicts it.
    """
    if d2t.ndim != 1 or d2t.is_floating_point() or d2t.dtype == torch.bool:
        raise ModelError(f"d2t of {source} is no list of integers: found {list(d2t.shape)} {d2t.dtype}")
    direct = d2t.to(torch.int64)
    readings = [ids for ids in (torch.arange(len(direct)) + direct, direct) if _is_map(ids, vocab)]
    if not readings:
        raise ModelError(
            f"d2t of {source} is neither a map of offsets nor of ids: expected {len(direct)} ascending ids "
            f"below {vocab}, the target's vocabulary"
        )
    if t2d is None:
        return list(map(int, readings[0]))
    present = t2d.flatten().nonzero().flatten()
    agreeing = [ids for ids in readings if torch.equal(ids, present)]
    if not agreeing:
        raise ModelError(f"d2t and t2d of {source} disagree: they name different ids; one of them is damaged")
    return list(map(int, agreeing[0]))


def _is_map(ids: Tensor, vocab: int) -> bool:
    return bool(len(ids) and ids[0] >= 0 and ids[-1] < vocab and (ids.diff() > 0).all())


def offsets_of(draft_ids: Sequence[int]) -> Tensor:
    """The ids as a checkpoint's `d2t`: [draft_vocab] int64, id = row + offset."""
    return torch.tensor(list(draft_ids), dtype=torch.int64) - torch.arange(len(draft_ids))


def presence_of(draft_ids: Sequence[int], vocab: int) -> Tensor:
    """The ids as a checkpoint's `t2d`: [vocab] bool."""
    present = torch.zeros(vocab, dtype=torch.bool)
    present[torch.tensor(list(draft_ids), dtype=torch.int64)] = True
    return present
