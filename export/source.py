"""Where a model comes from: a directory, the hub, or a GGUF file."""

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from spec_trt.errors import ModelError

__all__ = ["Source", "locate"]

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What transformers' `from_pretrained` is given.

    Attributes:
        path: A directory or a hub id.
        gguf_file: A file's name in that directory.
        name: What the manifest calls the model: never a path of this machine.
        revision: The hub's commit, once it is known.
    """

    path: str
    gguf_file: str | None
    name: str
    revision: str | None = None


def locate(model: str) -> Source:
    """Tell what `model` is.

    Raises:
        ModelError: It is neither a model's directory, nor a GGUF file, nor a hub id.
    """
    path = Path(model).expanduser()
    if path.suffix.lower() == ".gguf":
        return _gguf(path)
    if path.is_dir():
        return _directory(path)
    if path.exists():
        raise ModelError(f"{model} is not a model: expected a directory, a hub id or a .gguf file")
    if not _HUB_ID.fullmatch(model) or model.startswith("."):
        raise ModelError(f"{model} does not exist: expected a model's directory, a hub id or a .gguf file")
    return Source(path=model, gguf_file=None, name=model)


def _directory(path: Path) -> Source:
    if not (path / "config.json").is_file():
        raise ModelError(f"{path} holds no model: expected a Hugging Face directory with a config.json")
    return Source(path=str(path), gguf_file=None, name=path.resolve().name)


def _gguf(path: Path) -> Source:
    if not path.is_file():
        raise ModelError(f"{path} does not exist: expected a .gguf file")
    with path.open("rb") as stream:
        magic = stream.read(4)
    if magic != b"GGUF":
        raise ModelError(f"{path} is not a GGUF file: it does not begin with the bytes GGUF")
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise ModelError(f"reading {path.name} needs {' and '.join(missing)}: pip install 'spec-trt[gguf]'")
    return Source(path=str(path.parent), gguf_file=path.name, name=path.name)
