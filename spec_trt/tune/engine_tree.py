"""The static trees in an engine's manifest."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from spec_trt.errors import ManifestError, SpecTrtError
from spec_trt.manifest import EagleFacts, Manifest, MedusaFacts, load_manifest, save_manifest
from spec_trt.runtime.drafters import METHODS

__all__ = ["head_facts", "load_engine_manifest", "write_tree"]

_MARK = "; tree tuned"


def load_engine_manifest(directory: Path) -> Manifest:
    """An engine's manifest.

    Raises:
        ManifestError: The directory is damaged, or a bundle.
    """
    manifest = load_manifest(directory)
    if manifest.engine is None:
        raise ManifestError(
            f"{directory} is a bundle, a tree is tuned for an engine on its machine: "
            f"build one with `spec-trt build {directory} ENGINE`"
        )
    return manifest


def head_facts(manifest: Manifest, method: str) -> MedusaFacts | EagleFacts | None:
    """What a manifest says of the head that a method needs; None without one."""
    return manifest.heads.medusa if METHODS[method].head == "medusa" else manifest.heads.eagle


def write_tree(directory: Path, expected: Manifest, method: str, tree: Sequence[Sequence[int]], how: str) -> Manifest:
    """Make a tree the default one of an engine, whole or not at all; all else in its manifest stays.

    Args:
        directory: The engine's.
        expected: The manifest that it had when it was loaded.
        method: Whose tree.
        tree: Paths of ranks.
        how: A few words on how it was tuned, for the head's `source`.

    Returns:
        The manifest that it has now.

    Raises:
        ManifestError: The engine was built again meanwhile.
        SpecTrtError: The manifest can't be written.
    """
    if load_manifest(directory) != expected:
        raise ManifestError(f"{directory} has changed since it was loaded: nothing was written; tune it again")
    facts = head_facts(expected, method)
    assert facts is not None  # it has drafted
    source = f"{facts.source.partition(_MARK)[0]}{_MARK} {how}"
    changed: dict[str, Any] = {str(METHODS[method].head): replace(facts, tree=[*map(list, tree)], source=source)}
    manifest = replace(expected, heads=replace(expected.heads, **changed))
    _replace(directory, manifest)
    return manifest


def _replace(directory: Path, manifest: Manifest) -> None:
    try:
        with tempfile.TemporaryDirectory(dir=directory, prefix=".tune.") as staging:
            save_manifest(manifest, Path(staging))
            (written,) = Path(staging).iterdir()
            written.replace(directory / written.name)
    except OSError as error:
        raise SpecTrtError(
            f"cannot write to {directory}: {error.strerror or error}; the engine is as it was"
        ) from error
