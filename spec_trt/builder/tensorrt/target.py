"""Which GPUs an engine is built for."""

from collections.abc import Sequence
from dataclasses import dataclass

from spec_trt.errors import BackendError, ConfigError
from spec_trt.tensorrt import accepted_compute_capabilities

__all__ = ["Target", "choose_target"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The GPUs that an engine is for.

    Attributes:
        compute_capabilities: Theirs, as `8.9`, in order.
        at_hand: Whether it is the GPU of this machine, named by nobody.
    """

    compute_capabilities: list[str]
    at_hand: bool


def choose_target(backend: str, asked: Sequence[str] | None) -> Target:
    """The GPUs that were asked for, or the one at hand.

    Args:
        backend: `trt` or `trt-rtx`.
        asked: Compute capabilities; only TensorRT for RTX builds for a GPU that isn't there.

    Raises:
        ConfigError: The library does not build for one of them, or none was asked for and there is no GPU.
        BackendError: TensorRT finds no GPU.
    """
    if not asked:
        return Target(compute_capabilities=[_at_hand(backend)], at_hand=True)
    accepted = accepted_compute_capabilities(backend)
    refused = [capability for capability in asked if capability not in accepted]
    if refused:
        raise ConfigError(
            f"TensorRT for RTX does not build for compute capability {', '.join(refused)}: "
            f"it accepts {', '.join(accepted)}; TensorRT, --backend trt, builds for others, on the GPU itself"
        )
    return Target(compute_capabilities=[capability for capability in accepted if capability in asked], at_hand=False)


def _at_hand(backend: str) -> str:
    import torch

    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        return f"{major}.{minor}"
    if backend == "trt":
        raise BackendError(
            "TensorRT builds on the GPU that is to run the engine, and PyTorch finds none here: build on that machine, "
            "or with --backend trt-rtx for an RTX GPU"
        )
    accepted = ", ".join(accepted_compute_capabilities(backend))
    raise ConfigError(f"there is no GPU here to build for: name one with --compute-capability, of {accepted}")
