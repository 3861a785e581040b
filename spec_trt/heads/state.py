"""The tensors that a head needs against those that a checkpoint holds: all there, none more, all of their shape."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from spec_trt.errors import ModelError
from spec_trt.heads.draft_vocab import MAPS

__all__ = ["check_state", "save_state", "saved"]

Shape = Sequence[int]


def check_state(found: Mapping[str, Tensor], needed: Mapping[str, Shape], source: str, kind: str) -> None:
    """Refuse a checkpoint that is not exactly what is needed.

    Args:
        found: The checkpoint's tensors.
        needed: The shape of every tensor that there must be.
        source: The checkpoint's name.
        kind: What it was taken for: "EAGLE-3", ...

    Raises:
        ModelError: Names every key that is missing, unknown, misshapen or not of floating point.
    """
    shared = [key for key in needed if key in found]
    faults = {
        "missing": [key for key in needed if key not in found],
        "unknown": [key for key in found if key not in needed],
        "of another shape": [
            f"{key} {list(found[key].shape)} instead of {list(needed[key])}"
            for key in shared
            if list(found[key].shape) != list(needed[key])
        ],
        "not of floating point": [
            f"{key} {found[key].dtype}" for key in shared if key not in MAPS and not found[key].is_floating_point()
        ],
    }
    described = [f"{len(keys)} {fault} ({', '.join(sorted(keys))})" for fault, keys in faults.items() if keys]
    if described:
        raise ModelError(f"{source} is no {kind} head that fits the target and its config: {'; '.join(described)}")


def saved(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Tensors as a file keeps them: on the CPU, contiguous, unshared, floating-point ones as `dtype`.

    Raises:
        ModelError: A weight is not finite, or not in `dtype`.
    """
    cast = {
        key: tensor.detach().to("cpu", dtype if tensor.is_floating_point() else tensor.dtype, copy=True).contiguous()
        for key, tensor in tensors.items()
    }
    lost = sorted(key for key, tensor in cast.items() if not torch.isfinite(tensor).all())
    if lost:
        raise ModelError(f"weights are not finite as {dtype}: {', '.join(lost)}; train with a smaller rate")
    return cast


def save_state(tensors: Mapping[str, Any], file: Path) -> None:
    """Write tensors as safetensors, in PyTorch's own format where the name ends in .pt."""
    if file.suffix == ".pt":
        torch.save(dict(tensors), file)
    else:
        save_file(dict(tensors), file, metadata={"format": "pt"})
