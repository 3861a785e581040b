"""From a bundle to an engine directory."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from spec_trt.builder.backend import Backend, Job, Progress
from spec_trt.builder.config import BuildConfig
from spec_trt.builder.ort_backend import OrtBackend
from spec_trt.builder.tensorrt.backend import TensorRtBackend
from spec_trt.errors import ConfigError, ManifestError
from spec_trt.files import atomic_directory
from spec_trt.manifest import EngineFacts, Manifest, describe_files, engine_facts, load_manifest, save_manifest

__all__ = ["Built", "build_engine"]

_BACKENDS: dict[str, Callable[[Job], Backend]] = {
    "ort": OrtBackend,
    "trt": TensorRtBackend,
    "trt-rtx": TensorRtBackend,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The outcome of a build: the engine's manifest, and whether anything had to be done for it."""

    manifest: Manifest
    fresh: bool


def build_engine(config: BuildConfig, progress: Progress = lambda _: None) -> Built:
    """Make an engine directory from a bundle, unless an equal one is there.

    Args:
        config: What to build.
        progress: Told the name of each step as it begins.

    Raises:
        ManifestError: The bundle is missing or damaged.
        ConfigError: The output is in the way, or the bundle can't be built with these settings.
        BackendError: The back end's library is missing, can't build here, or refuses the result.
        BuildError: A graph can't be made.
    """
    bundle = load_manifest(config.bundle, verify=config.verify)
    if bundle.engine is not None:
        raise ManifestError(f"{config.bundle} is an engine already: build from the bundle that `export` wrote")
    backend = _BACKENDS[config.backend](Job(config=config, bundle=bundle, progress=progress))
    facts = backend.identify()
    found = _existing(config.out)
    if found == facts and (whole := _whole(config)) is not None:
        return Built(manifest=whole, fresh=False)
    _check_output(config, found, facts)
    with atomic_directory(config.out, replace=found is not None) as directory:
        _copy_tokenizer(config.bundle, bundle, directory)
        manifest = replace(
            bundle,
            graphs={name: backend.build_graph(name, directory) for name in bundle.graphs},
            model=backend.engine_model(),
            engine=facts,
        )
        manifest = replace(manifest, files=describe_files(directory))
        save_manifest(manifest, directory)
    return Built(manifest=manifest, fresh=True)


def _existing(out: Path) -> EngineFacts | None:
    """The facts of the engine in `out`, if that is what it holds, damaged or not."""
    try:
        return engine_facts(json.loads((out / "manifest.json").read_text(encoding="utf-8"))["engine"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _whole(config: BuildConfig) -> Manifest | None:
    """The manifest of the engine that is there already, unless it is damaged: then it is made again."""
    try:
        return load_manifest(config.out, verify=config.verify)
    except ManifestError:
        return None


def _check_output(config: BuildConfig, found: EngineFacts | None, wanted: EngineFacts) -> None:
    """Refuse to overwrite what is not an engine, or another engine without being told to."""
    if not config.out.exists():
        return
    if found is None:
        raise ConfigError(f"{config.out} exists and is no engine directory: choose another one, it is never replaced")
    if found != wanted and not config.force:
        raise ConfigError(
            f"{config.out} holds an engine with other {', '.join(_differing(found, wanted))}: "
            "replace it with --force, or choose another directory"
        )


def _differing(found: EngineFacts, wanted: EngineFacts) -> list[str]:
    """The facts that two engines differ in, those of a TensorRT engine by their own names."""
    pairs = [(asdict(found), asdict(wanted))]
    if found.tensorrt is not None and wanted.tensorrt is not None:
        pairs.append((pairs[0][0].pop("tensorrt"), pairs[0][1].pop("tensorrt")))
    return [name for old, new in pairs for name, value in new.items() if old.get(name) != value]


def _copy_tokenizer(source: Path, bundle: Manifest, directory: Path) -> None:
    """Copy every file of the bundle that belongs to no graph."""
    graphs = tuple(graph.file for graph in bundle.graphs.values())
    for facts in bundle.files:
        if not facts.path.startswith(graphs):
            target = directory / facts.path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / facts.path, target)
