"""Read a head's checkpoint: its tensors and its config.json, whatever files they lie in."""

import json
import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from spec_trt.errors import ModelError

__all__ = ["Checkpoint", "read_checkpoint"]

_INDEX = ".index.json"
_SUFFIXES = (".safetensors", ".pt", ".bin", ".pth")
_WHOLE_MODELS = (
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
)
_NEVER_WEIGHTS = ("training_args.bin", "optimizer", "scheduler", "rng_state", "scaler")
_ROTARY = "rotary_emb.inv_freq"

Choose = Callable[[Sequence[str]], Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A head's checkpoint as it was found.

    Attributes:
        tensors: By their keys.
        config: What config.json held; empty without one.
        source: A name for messages and manifests, never a path of this machine.
        notes: What was ignored, for the user.
    """

    tensors: dict[str, Tensor]
    config: dict[str, Any]
    source: str
    notes: list[str]


def read_checkpoint(path: Path, *, preferred: Sequence[str] = (), choose: Choose = lambda keys: keys) -> Checkpoint:
    """Read a checkpoint's config and the tensors wanted of it.

    Args:
        path: A directory, or a file of weights, its config.json beside it.
        preferred: Names of files that come before a whole model's in a directory.
        choose: Picks the keys to read from all there are; the others may be a base model's, gigabytes of them.

    Raises:
        ModelError: There are no weights, or a file is damaged, is no checkpoint, or holds code.
    """
    files = _weight_files(path, preferred)
    keys = {key: file for file in files for key in _keys(file)}
    chosen = choose(list(keys))
    ignored = sorted(key for key in chosen if key.endswith(_ROTARY))
    wanted = [key for key in chosen if key not in ignored]
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors |= _read(file, [key for key in wanted if keys[key] == file])
    notes = [f"ignored, a head computes them: {', '.join(ignored)}"] if ignored else []
    return Checkpoint(tensors=tensors, config=_config(path), source=path.resolve().name, notes=notes)


def _weight_files(path: Path, preferred: Sequence[str]) -> list[Path]:
    if path.is_dir():
        return _files_of_directory(path, preferred)
    if not path.is_file():
        raise ModelError(f"{path} does not exist: expected a draft head's directory, or its file of weights")
    if path.name.endswith(_INDEX):
        return _shards(path)
    if path.suffix not in _SUFFIXES:
        raise ModelError(f"{path} is no draft head: expected a directory, or a file ending in {', '.join(_SUFFIXES)}")
    return [path]


def _files_of_directory(directory: Path, preferred: Sequence[str]) -> list[Path]:
    """The named files, the first that exists; else the only file of weights there is."""
    for name in (*preferred, *_WHOLE_MODELS):
        if (directory / name).is_file():
            return _shards(directory / name) if name.endswith(_INDEX) else [directory / name]
    found = sorted(
        file for file in directory.iterdir() if file.suffix in _SUFFIXES and not file.name.startswith(_NEVER_WEIGHTS)
    )
    if not found:
        raise ModelError(f"{directory} holds no draft head: expected a file ending in {', '.join(_SUFFIXES)}")
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise ModelError(f"{directory} holds several files of weights ({names}): give the path of the one to load")
    return found


def _shards(index: Path) -> list[Path]:
    weight_map = _json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise ModelError(f"{index} is damaged: expected a weight_map of keys to files")
    names = sorted(set(weight_map.values()))
    outside = [name for name in names if Path(name).name != name]
    missing = [name for name in names if not (index.parent / name).is_file()]
    if outside or missing or not names:
        raise ModelError(f"{index} does not fit its directory: expected files in it, missing {outside or missing}")
    return [index.parent / name for name in names]


def _keys(file: Path) -> list[str]:
    if file.suffix != ".safetensors":
        return list(_pickled(file))
    with _named_errors(file), safe_open(file, framework="pt") as stream:
        return list(stream.keys())


def _read(file: Path, keys: Sequence[str]) -> dict[str, Tensor]:
    if file.suffix != ".safetensors":
        tensors = _pickled(file)
        return {key: tensors[key] for key in keys}
    with _named_errors(file), safe_open(file, framework="pt") as stream:
        return {key: stream.get_tensor(key) for key in keys}


def _pickled(file: Path) -> Mapping[str, Tensor]:
    """A state dict of PyTorch's own format; mapped, so that only what is used is read."""
    with _named_errors(file), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a protocol other than its own: either it can be read, or it raises
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=_is_zip(file))
    if not isinstance(content, dict) or not all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in content.items()
    ):
        raise ModelError(f"{file} is no checkpoint of weights: expected tensors by name and nothing else")
    return content


def _is_zip(file: Path) -> bool:
    with file.open("rb") as stream:
        return stream.read(2) == b"PK"


@contextmanager
def _named_errors(file: Path) -> Iterator[None]:
    try:
        yield
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"cannot read {file}: damaged, or it holds more than tensors; nothing in it was run"
        ) from error
    except Exception as error:  # damaged bytes make the readers raise whatever they stumble over
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(f"cannot read {file}: damaged or cut short ({reason}); get it again") from error


def _config(path: Path) -> dict[str, Any]:
    file = (path if path.is_dir() else path.parent) / "config.json"
    return _json(file) if file.is_file() else {}


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise ModelError(f"{file} is damaged: expected JSON ({error})") from error
    if not isinstance(content, dict):
        raise ModelError(f"{file} is damaged: expected a JSON object, found {type(content).__name__}")
    return content
