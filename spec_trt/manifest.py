"""`manifest.json`: what a bundle or an engine directory holds, and the checks on loading one."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

from spec_trt import names
from spec_trt.errors import ManifestError
from spec_trt.files import sha256

__all__ = [
    "SCHEMA_VERSION",
    "EagleFacts",
    "EngineFacts",
    "FileFacts",
    "GraphFacts",
    "HeadFacts",
    "Manifest",
    "MedusaFacts",
    "ModelFacts",
    "SourceFacts",
    "TensorFacts",
    "TensorRtFacts",
    "describe_files",
    "engine_facts",
    "load_manifest",
    "save_manifest",
]

SCHEMA_VERSION = 1
MANIFEST_FILE = "manifest.json"

Facts = TypeVar("Facts")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFacts:
    """One input or output of a graph; a dimension is a number or a name of the legend."""

    name: str
    dtype: str
    shape: list[int | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFacts:
    """One ONNX graph: its file and its interface."""

    file: str
    inputs: list[TensorFacts]
    outputs: list[TensorFacts]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What the runtime needs to know of the target model; `dtype` is that of weights and cache."""

    family: str
    dtype: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocab: int
    max_positions: int
    eos_ids: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MedusaFacts:
    """The Medusa heads of a bundle.

    Attributes:
        heads: How many.
        layers: Residual blocks per head.
        top_k: Candidates per head that the graph gives.
        draft_vocab: Rows of a head's projection.
        draft_ids: The target's id of each row; None where they are the same.
        tree: The default static tree: paths of ranks, one per node below the root.
        source: Where the weights came from: a name, never a path of this machine.
    """

    heads: int
    layers: int
    top_k: int
    draft_vocab: int
    draft_ids: list[int] | None
    tree: list[list[int]]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleFacts:
    """The EAGLE draft model of a bundle.

    Attributes:
        version: 1 (EAGLE and EAGLE-2) or 3.
        layers: Decoder layers, each with a cache.
        kv_heads: Of a layer.
        head_dim: Of a layer.
        hidden: Size of the draft's features.
        feature_layers: EAGLE-3: the target's layers whose inputs it reads; empty where it reads `hidden_states`.
        top_k: Candidates per node that the graph gives.
        draft_vocab: Rows of its projection.
        draft_ids: The target's id of each row; None where they are the same.
        tree: The default static tree: paths of ranks, one per node below the root.
        source: Where the weights came from: a name, never a path of this machine.
    """

    version: int
    layers: int
    kv_heads: int
    head_dim: int
    hidden: int
    feature_layers: list[int]
    top_k: int
    draft_vocab: int
    draft_ids: list[int] | None
    tree: list[list[int]]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadFacts:
    """The draft heads beside the base graph."""

    medusa: MedusaFacts | None = None
    eagle: EagleFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """Where the weights came from."""

    model: str
    revision: str | None
    exporter_version: str
    torch_version: str
    transformers_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRtFacts:
    """What the engines of a TensorRT back end were built for: no pass may have other shapes, on no other GPU.

    Attributes:
        attention: `plugin`, the TreeAttention plugin, or `native`, the library's own attention.
        plugin_version: The plugin's; None in `native`.
        compute_capabilities: The GPUs, as `8.9`.
        max_length: Tokens of a sequence at the most.
        max_batch: Sequences of a pass at the most.
        max_nodes: Nodes of a decode pass at the most.
        prefill_chunk: Nodes of a prefill pass at the most.
        profiles: Per graph, per profile (`names.PROFILES`, the engine's own order), per input: the smallest, the
            optimal and the largest shape.
    """

    attention: str
    plugin_version: str | None
    compute_capabilities: list[str]
    max_length: int
    max_batch: int
    max_nodes: int
    prefill_chunk: int
    profiles: dict[str, dict[str, dict[str, list[list[int]]]]]

    def window(self, graph: str, profile: str) -> int:
        """Columns of the mask in every pass of a profile: this pass's nodes are the last of them."""
        return self.profiles[graph][profile][names.TREE_MASK][0][2]

    def capacity(self, graph: str) -> int:
        """Rows of a cache buffer, the `past` of every pass: `max_length`, a draft's tentative rows, and a few more."""
        return self.profiles[graph][names.DECODE][names.past_key(0)][0][2]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What `build` adds: the back end that made the engine and what it may be loaded with."""

    backend: Literal["ort", "trt", "trt-rtx"]
    precision: str
    library_version: str
    builder_version: str
    options: dict[str, Any]
    bundle_sha256: str
    tensorrt: TensorRtFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """One file of the directory, by its relative path."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The whole of `manifest.json`. A bundle has no `engine`."""

    model: ModelFacts
    graphs: dict[str, GraphFacts]
    heads: HeadFacts
    source: SourceFacts
    files: list[FileFacts]
    engine: EngineFacts | None = None
    schema_version: int = SCHEMA_VERSION


def describe_files(directory: Path) -> list[FileFacts]:
    """List every file below `directory` but the manifest, with its size and hash."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file() and path.name != MANIFEST_FILE)
    return [
        FileFacts(path=path.relative_to(directory).as_posix(), bytes=path.stat().st_size, sha256=sha256(path))
        for path in paths
    ]


def save_manifest(manifest: Manifest, directory: Path) -> None:
    """Write `manifest.json` into `directory`."""
    text = json.dumps(asdict(manifest), indent=2, ensure_ascii=False)
    (directory / MANIFEST_FILE).write_text(text + "\n", encoding="utf-8")


def load_manifest(directory: Path, *, verify: bool = False) -> Manifest:
    """Read and check `directory`'s manifest.

    Args:
        directory: A bundle or engine directory.
        verify: Whether to compare every file's hash too; sizes are always compared.

    Raises:
        ManifestError: The directory or manifest is missing, unreadable or of another schema, or
            a file is missing or differs.
    """
    if not directory.is_dir():
        raise ManifestError(f"{directory} is not a directory: expected what `spec-trt export` or `build` wrote")
    path = directory / MANIFEST_FILE
    if not path.is_file():
        raise ManifestError(f"{directory} has no {MANIFEST_FILE}: not a bundle or engine directory; {_REMAKE}")
    try:
        manifest = _parse(json.loads(path.read_text(encoding="utf-8")))
        _check_whole(manifest)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ManifestError(f"{path} is damaged ({error}); {_REMAKE}") from error
    for facts in manifest.files:
        _check_file(directory, facts, verify=verify)
    return manifest


_REMAKE = "make it again with `spec-trt export` or `spec-trt build`"


def _parse(data: Any) -> Manifest:  # noqa: ANN401 - whatever the JSON file held
    if not isinstance(data, dict):
        raise TypeError("expected a JSON object")
    version = data.get("schema_version")
    if version != SCHEMA_VERSION:
        raise ValueError(f"expected schema_version {SCHEMA_VERSION}, found {version}")
    parts = dict(data)
    parts["model"] = _facts(ModelFacts, parts["model"])
    parts["source"] = _facts(SourceFacts, parts["source"])
    parts["files"] = [_facts(FileFacts, item) for item in parts["files"]]
    parts["heads"] = _heads(parts["heads"])
    parts["graphs"] = {name: _graph(item) for name, item in parts["graphs"].items()}
    if parts.get("engine") is not None:
        parts["engine"] = engine_facts(parts["engine"])
    return _facts(Manifest, parts)


def engine_facts(data: Mapping[str, Any]) -> EngineFacts:
    """Read a manifest's `engine`.

    Raises:
        TypeError: A value is of another type.
        ValueError: A key is unknown.
    """
    if not isinstance(data, Mapping):
        raise TypeError("expected an object for EngineFacts")
    parts = dict(data)
    if parts.get("tensorrt") is not None:
        parts["tensorrt"] = _facts(TensorRtFacts, parts["tensorrt"])
    return _facts(EngineFacts, parts)


def _heads(data: Mapping[str, Any]) -> HeadFacts:
    if not isinstance(data, Mapping):
        raise TypeError("expected an object for HeadFacts")
    parts = dict(data)
    for name, kind in (("medusa", MedusaFacts), ("eagle", EagleFacts)):
        if parts.get(name) is not None:
            parts[name] = _facts(kind, parts[name])
    return _facts(HeadFacts, parts)


def _graph(data: Mapping[str, Any]) -> GraphFacts:
    parts = dict(data)
    for side in ("inputs", "outputs"):
        parts[side] = [_facts(TensorFacts, item) for item in parts[side]]
    return _facts(GraphFacts, parts)


def _facts(kind: type[Facts], data: Mapping[str, Any]) -> Facts:
    """Make a dataclass from its JSON object; unknown and missing keys are errors."""
    if not isinstance(data, Mapping):
        raise TypeError(f"expected an object for {kind.__name__}")
    unknown = set(data) - {item.name for item in fields(kind)}  # type: ignore[arg-type]
    if unknown:
        raise ValueError(f"unknown keys {sorted(unknown)} in {kind.__name__}")
    made = kind(**data)
    for item in fields(kind):  # type: ignore[arg-type]
        expected, value = _JSON_TYPES.get(str(item.type).split("[")[0], object), getattr(made, item.name)
        known = get_args(item.type) if get_origin(item.type) is Literal else None
        if known is not None and value not in known:
            raise ValueError(f"{kind.__name__}.{item.name} can't be {value!r}: expected one of {', '.join(known)}")
        absent = value is None and str(item.type).endswith("| None")
        if not absent and not isinstance(value, expected):
            raise TypeError(f"{kind.__name__}.{item.name} can't be {value!r}")
    return made


_JSON_TYPES: dict[str, type] = {
    "<class 'str'>": str,
    "<class 'int'>": int,
    "dict": dict,
    "list": list,
}


def _check_whole(manifest: Manifest) -> None:
    """What every directory has: a base graph, and each graph's file among the files."""
    if "base" not in manifest.graphs:
        raise ValueError("it names no base graph")
    if manifest.model.dtype not in _DTYPES or not all(isinstance(token, int) for token in manifest.model.eos_ids):
        raise ValueError("the model's dtype or end-of-sequence ids make no sense")
    missing = {graph.file for graph in manifest.graphs.values()} - {facts.path for facts in manifest.files}
    if missing:
        raise ValueError(f"{', '.join(sorted(missing))} is not among its files")


_DTYPES = ("fp32", "fp16", "bf16")


def _check_file(directory: Path, facts: FileFacts, *, verify: bool) -> None:
    path = directory / facts.path
    if not path.resolve().is_relative_to(directory.resolve()):
        raise ManifestError(f"{directory} is damaged: its manifest names {facts.path}, outside of it; {_REMAKE}")
    if not path.is_file():
        raise ManifestError(f"{path} is missing; {_REMAKE}")
    size = path.stat().st_size
    if size != facts.bytes:
        raise ManifestError(f"{path} has {size} bytes, expected {facts.bytes}: damaged or cut short; {_REMAKE}")
    if verify and sha256(path) != facts.sha256:
        raise ManifestError(f"{path} has another content than its manifest says (sha256 differs); {_REMAKE}")
