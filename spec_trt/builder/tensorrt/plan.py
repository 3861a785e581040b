"""A parsed network compiled into the bytes of an engine."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from spec_trt.builder.tensorrt.library_log import LibraryLog
from spec_trt.builder.tensorrt.monitor import progress_monitor
from spec_trt.builder.tensorrt.network import ParsedNetwork
from spec_trt.builder.tensorrt.profiles import Profiles
from spec_trt.builder.tensorrt.settings import TensorRtSettings
from spec_trt.builder.tensorrt.target import Target
from spec_trt.errors import BuildError

__all__ = ["PlanBuilder"]


class PlanBuilder:
    """Compiles networks with the same settings.

    Args:
        library: `tensorrt` or `tensorrt_rtx`.
        settings: Of the build.
        target: The GPUs to build for.
    """

    def __init__(self, library: ModuleType, settings: TensorRtSettings, target: Target) -> None:
        self._library, self._settings, self._target = library, settings, target

    def compile(
        self,
        name: str,
        parsed: ParsedNetwork,
        profiles: Profiles,
        log: LibraryLog,
        begin: Callable[[str], object],
    ) -> Any:  # noqa: ANN401 - the library's own buffer
        """Compile one network.

        Args:
            name: The graph's, for the message.
            parsed: The network.
            profiles: The shapes it is for.
            log: Takes what the library says.
            begin: Told of each phase as it begins.

        Returns:
            The engine, a buffer of bytes.

        Raises:
            BuildError: The library can't build it.
        """
        from polygraphy.backend.trt import engine_bytes_from_network
        from polygraphy.exception import PolygraphyException

        monitor = progress_monitor(self._library, begin)
        network = (parsed.builder, parsed.network, parsed.parser)
        cache = self._settings.timing_cache
        try:
            return engine_bytes_from_network(
                network,
                config=lambda builder, network: self._config(builder, network, profiles, monitor),
                save_timing_cache=None if cache is None else str(cache),
            )
        except PolygraphyException as error:
            raise BuildError(
                f"{self._library.__name__} can't build the graph {name!r}: {log.reason_and_cause}"
            ) from error

    def _config(self, builder: Any, network: Any, profiles: Profiles, monitor: Any) -> Any:  # noqa: ANN401 - the library has no types
        """The library's settings: float32 means float32, not TF32, and the inspector can tell all of every layer.

        TensorRT for RTX allocates memory at run time unless told to leave that to the caller; a capture as a CUDA graph
        does not allow it.
        """
        config = self._config_loader(profiles, monitor)(builder, network)
        flags = self._library.BuilderFlag
        config.clear_flag(flags.TF32)
        config.profiling_verbosity = self._library.ProfilingVerbosity.DETAILED
        if hasattr(flags, "REQUIRE_USER_ALLOCATION"):
            config.set_flag(flags.REQUIRE_USER_ALLOCATION)
        return config

    def _config_loader(self, profiles: Profiles, monitor: Any) -> Any:  # noqa: ANN401 - as above
        from polygraphy.backend.tensorrt_rtx import CreateConfigRTX
        from polygraphy.backend.trt import CreateConfig

        workspace = self._settings.workspace_bytes
        shared: dict[str, Any] = {
            "profiles": [_profile(shapes) for shapes in profiles.values()],
            "memory_pool_limits": {} if workspace is None else {self._library.MemoryPoolType.WORKSPACE: workspace},
            "progress_monitor": monitor,
        }
        if self._library.__name__ == "tensorrt":
            cache = self._settings.timing_cache
            return CreateConfig(load_timing_cache=None if cache is None else str(cache), **shared)
        if self._target.at_hand:
            return CreateConfigRTX(use_gpu=True, **shared)
        pairs = [tuple(map(int, capability.split("."))) for capability in self._target.compute_capabilities]
        return CreateConfigRTX(compute_capabilities=pairs, **shared)


def _profile(shapes: dict[str, list[list[int]]]) -> Any:  # noqa: ANN401 - Polygraphy has no types
    from polygraphy.backend.trt import Profile

    profile = Profile()
    for name, (smallest, optimal, largest) in shapes.items():
        profile.add(name, tuple(smallest), tuple(optimal), tuple(largest))
    return profile
