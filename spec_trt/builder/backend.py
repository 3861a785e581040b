"""What a back end is to the builder."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from spec_trt.builder.config import BuildConfig
from spec_trt.manifest import EngineFacts, GraphFacts, Manifest, ModelFacts

__all__ = ["Backend", "Job", "Progress"]

Progress = Callable[[str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What building an engine needs to know.

    Attributes:
        config: What to build.
        bundle: The manifest of the bundle.
        progress: Told the name of each step as it begins.
    """

    config: BuildConfig
    bundle: Manifest
    progress: Progress


class Backend(Protocol):
    """Makes one engine: what identifies it, and how a graph of the bundle becomes a file of its directory."""

    def identify(self) -> EngineFacts:
        """What the engine will be: two builds with equal facts hold the same.

        Raises:
            BackendError: The back end's library is missing, or can't build on this machine.
            ConfigError: The bundle can't be built with these settings.
        """

    def engine_model(self) -> ModelFacts:
        """The model as the engine has it: its type may be another than the bundle's."""

    def build_graph(self, name: str, directory: Path) -> GraphFacts:
        """Make one graph.

        Args:
            name: Its key in the manifest.
            directory: Where its files go.

        Returns:
            Its file and interface.

        Raises:
            BuildError: It can't be made.
            BackendError: The library refuses the result.
        """
