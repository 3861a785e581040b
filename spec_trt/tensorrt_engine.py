"""Whether this machine can load a TensorRT engine: what must agree, and how to build it again where it does not."""

from collections.abc import Iterable
from pathlib import Path

from spec_trt.errors import ManifestError
from spec_trt.manifest import EngineFacts, TensorRtFacts
from spec_trt.tensorrt import TENSORRT_TITLES, accepted_compute_capabilities

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
    title = TENSORRT_TITLES[facts.backend]
    mismatch = None
    if facts.library_version != library_version:
        mismatch = f"with {title} {facts.library_version}, found {library_version}"
    elif built.plugin_version not in (None, plugin_version):
        mismatch = f"with TreeAttention plugin {built.plugin_version}, found {plugin_version}"
    elif compute_capability not in built.compute_capabilities:
        targets = ", ".join(built.compute_capabilities)
        mismatch = f"for compute capability {targets}, this GPU has {compute_capability}"
    if mismatch is not None:
        again = _again(directory, facts, built, compute_capability)
        raise ManifestError(f"{directory} was built {mismatch}: {again}")
    return built


def _again(directory: Path, facts: EngineFacts, built: TensorRtFacts, compute_capability: str) -> str:
    """What builds such an engine for the GPU here: by the same back end, unless that has no such GPUs."""
    if facts.backend == "trt":
        return f"build it again: `{_command(directory, facts, built, 'trt')}`"
    accepted = accepted_compute_capabilities(facts.backend)
    named = [target for target in (*built.compute_capabilities, compute_capability) if target in accepted]
    if compute_capability in accepted:
        return f"build it again: `{_command(directory, facts, built, facts.backend, dict.fromkeys(named))}`"
    if compute_capability in built.compute_capabilities:  # which the GPU at hand was taken for
        return f"build it again: `{_command(directory, facts, built, facts.backend)}`"
    return (
        f"{TENSORRT_TITLES[facts.backend]} does not build for that, {TENSORRT_TITLES['trt']} does: "
        f"`{_command(directory, facts, built, 'trt')}`"
    )


def _command(
    directory: Path, facts: EngineFacts, built: TensorRtFacts, backend: str, capabilities: Iterable[str] = ()
) -> str:
    options: dict[str, object] = {"backend": backend}
    options |= {"compute-capability": named} if (named := ",".join(capabilities)) else {}
    options["attention"] = built.attention
    sizes = {name: getattr(built, name) for name in ("max_batch", "max_nodes", "prefill_chunk", "max_length")}
    options |= {name.replace("_", "-"): value for name, value in (sizes | facts.options).items() if value is not None}
    words = " ".join(f"--{name} {value}" for name, value in options.items())
    return f"spec-trt build BUNDLE {directory} {words} --force"
