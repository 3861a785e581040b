"""Whether this machine can load a TensorRT engine: what must agree, and how to build it again where it does not."""

from pathlib import Path

from spec_trt.errors import ManifestError
from spec_trt.manifest import EngineFacts, TensorRtFacts
from spec_trt.tensorrt import TENSORRT_TITLES

__all__ = ["check_tensorrt_engine"]


def check_tensorrt_engine(
    directory: Path, facts: EngineFacts, *, library_version: str, plugin_version: str, compute_capability: str
) -> TensorRtFacts:
    """Refuse an engine that was built for another library, plugin or GPU.

    Args:
        directory: Where it is, for the message.
        facts: What its manifest says.
        library_version: Of the library that is to load it, as `spec_trt.tensorrt.tensorrt_version` tells it.
        plugin_version: Of the plugin here, as `spec_trt.plugins.tree_attention.plugin` has it.
        compute_capability: Of the GPU here, as `8.9`.

    Returns:
        What the engine was built for.

    Raises:
        ManifestError: It does not fit; the message has the command that builds one that does.
    """
    built = facts.tensorrt
    if built is None:
        raise ManifestError(f"{directory} has no TensorRT engine: expected one built with `--backend trt` or `trt-rtx`")
    again = f"build it again: `{_command(directory, facts, built, compute_capability)}`"
    if facts.library_version != library_version:
        title = TENSORRT_TITLES[facts.backend]
        raise ManifestError(
            f"{directory} was built with {title} {facts.library_version}, found {library_version}: {again}"
        )
    if built.plugin_version not in (None, plugin_version):
        raise ManifestError(
            f"{directory} was built with TreeAttention plugin {built.plugin_version}, found {plugin_version}: {again}"
        )
    if compute_capability not in built.compute_capabilities:
        targets = ", ".join(built.compute_capabilities)
        raise ManifestError(
            f"{directory} was built for compute capability {targets}, this GPU has {compute_capability}: {again}"
        )
    return built


def _command(directory: Path, facts: EngineFacts, built: TensorRtFacts, compute_capability: str) -> str:
    """What builds the same engine for the GPU here."""
    capabilities = dict.fromkeys([*built.compute_capabilities, compute_capability])
    options: dict[str, str] = {"backend": facts.backend}
    if facts.backend == "trt-rtx":
        options["compute-capability"] = ",".join(capabilities)
    options["attention"] = built.attention
    for name in ("max_batch", "max_nodes", "prefill_chunk", "max_length"):
        options[name.replace("_", "-")] = str(getattr(built, name))
    words = " ".join(f"--{name} {value}" for name, value in options.items())
    return f"spec-trt build BUNDLE {directory} {words} --force"
