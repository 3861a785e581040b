"""Which rotary embedding a draft layer has: its target's, and what its own config says only where that has none."""

from collections.abc import Mapping
from typing import Any

from spec_trt.heads.target import HeadTarget

__all__ = ["draft_rope"]

_DEFAULT_THETA = 10000.0


def draft_rope(config: Mapping[str, Any], target: HeadTarget) -> tuple[dict[str, Any], list[str]]:
    """RoPE settings for a draft, as transformers names them, and notes for the user.

    A draft's own are often stale (a table cut at 2048 positions, a default theta), and it is trained with its
    target's. Where the target has none, or one per kind of layer, the draft's config speaks: under `rope_parameters`
    (transformers 5), or `rope_theta` and `rope_scaling` (transformers 4).

    Args:
        config: Of the draft.
        target: The model that it drafts for.
    """
    own = _own(config)
    if target.rope_parameters is None:
        notes = [] if own else [f"neither target nor head says a rope_theta: taken as {_DEFAULT_THETA:g}"]
        return {"rope_type": "default", "rope_theta": _DEFAULT_THETA} | own, notes
    theta, used = own.get("rope_theta"), target.rope_parameters.get("rope_theta")
    differs = theta is not None and used is not None and theta != used
    notes = [f"its rope_theta {theta:g} is not used, the target's {used:g} is"] if differs else []
    return dict(target.rope_parameters), notes


def _own(config: Mapping[str, Any]) -> dict[str, Any]:
    nested = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(nested, dict) or any(isinstance(value, dict) for value in nested.values()):
        nested = {}  # one per kind of layer: a draft's layer is of none
    settings = {name: value for name, value in nested.items() if name != "type"}
    if "type" in nested:
        settings.setdefault("rope_type", nested["type"])
    if config.get("rope_theta") is not None:
        settings.setdefault("rope_theta", config["rope_theta"])
    return settings
