"""An EAGLE draft's shape, out of its checkpoint's keys and config.json, whatever dialect that speaks.

Modules of a checkpoint are told by its keys; what has no tensor of its own (head_dim, where the residual leaves) only
the config says.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from spec_trt.errors import ConfigError, ModelError
from spec_trt.heads.checkpoint import Checkpoint
from spec_trt.heads.draft_vocab import draft_vocab_of
from spec_trt.heads.eagle import EagleConfig
from spec_trt.heads.rope import draft_rope
from spec_trt.heads.target import HeadTarget

__all__ = ["EagleSettings", "default_feature_layers", "eagle_version", "read_settings"]

Config = Mapping[str, Any]
State = Mapping[str, Tensor]

_EAGLE3_KEYS = ("midlayer.", "norm.", "input_norm.", "fc_norm.", "layers.0.hidden_norm.")
_NORMS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
_FEATURE_LAYERS = "eagle_aux_hidden_state_layer_ids"
_LAYER = "transformer_layer_config"


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleSettings:
    """What the checkpoint says, and what had to be assumed.

    Attributes:
        config: The draft's shape.
        notes: For the user.
    """

    config: EagleConfig
    notes: list[str]


def eagle_version(keys: Iterable[str]) -> Literal[1, 3]:
    """Tell EAGLE-3 from EAGLE by the norms that only it has.

    An EAGLE-3 head run as EAGLE drafts nothing that is ever accepted, and no error says so.
    """
    return 3 if any(key.startswith(_EAGLE3_KEYS) for key in keys) else 1


def default_feature_layers(layers: int) -> tuple[int, ...]:
    """The target's layers whose inputs EAGLE-3 reads where its checkpoint names none.

    Args:
        layers: Of the target.

    Raises:
        ModelError: The target is too shallow for three different ones.
    """
    return _checked_layers((2, layers // 2, layers - 3), layers, "EAGLE-3")


def read_settings(checkpoint: Checkpoint, state: State, target: HeadTarget) -> EagleSettings:
    """Read a draft's shape.

    Args:
        checkpoint: Its config and source.
        state: Its tensors under our names (`layers.0.` for `midlayer.`).
        target: The model that it drafts for.

    Raises:
        ModelError: The config lacks something, contradicts itself, or is another target's.
    """
    source, version = checkpoint.source, eagle_version(state)
    outer = _outer(checkpoint)
    inner = outer.get(_LAYER) or outer
    _check_kind(outer, version, source)
    rope, notes = draft_rope(inner, target)
    if _LAYER in outer and outer.get("norm_before_residual") is None:
        notes.append("norm_before_residual is not in its config: taken as false")
    try:
        config = EagleConfig(
            version=version,
            draft_vocab=draft_vocab_of(outer, state, target.vocab, source),
            rope_parameters=rope,
            max_positions=target.max_positions,
            layers=_count_layers(state),
            **_layer_shape(inner, state, source, nested=_LAYER in outer),
            **_fusion(outer, state, target, source, version=version),
        )
    except (ConfigError, TypeError, ValueError) as error:
        raise ModelError(f"{source} has a config that makes no sense: {error}") from error
    return EagleSettings(config=config, notes=notes)


def _outer(checkpoint: Checkpoint) -> dict[str, Any]:
    """The config; norms that some checkpoints keep in `eagle_config` beside the others."""
    config = checkpoint.config
    if not config:
        raise ModelError(f"{checkpoint.source} has no config.json: expected one beside the weights of an EAGLE head")
    nested = [name for name in (_LAYER, "eagle_config") if not isinstance(config.get(name) or {}, dict)]
    if nested:
        raise ModelError(f"{checkpoint.source} has a config that makes no sense: {nested[0]} is no object")
    inner = config.get("eagle_config") or {}
    return {name: inner[name] for name in _NORMS if name in inner} | config


def _check_kind(outer: Config, version: int, source: str) -> None:
    """Refuse relatives of EAGLE that would load, or nearly, and draft nonsense."""
    kind = outer.get("speculators_model_type", "eagle3")
    if kind != "eagle3":
        raise ModelError(f"{source} is a speculators model of type {kind}: expected eagle3")
    eagle = outer.get("eagle_config") or {}
    if version == 3 and eagle.get("use_aux_hidden_state") is False:
        raise ModelError(f"{source} reads one feature (use_aux_hidden_state is false): expected EAGLE-3's three")


def _count_layers(state: State) -> int:
    return max(1, len({key.split(".")[1] for key in state if key.startswith("layers.")}))


def _layer_shape(inner: Config, state: State, source: str, *, nested: bool) -> dict[str, Any]:
    """The attention and MLP; a nested config is that of a layer of transformers and means all it says."""
    hidden, heads = _integer(inner, "hidden_size", source), _integer(inner, "num_attention_heads", source)
    biased = _says(inner, "qkv_bias") or (nested and _says(inner, "attention_bias"))
    return {
        "hidden": hidden,
        "intermediate": _integer(inner, "intermediate_size", source),
        "heads": heads,
        "kv_heads": _integer(inner, "num_key_value_heads", source, heads),
        "head_dim": _integer(inner, "head_dim", source, hidden // heads),
        "qkv_bias": biased or _has(state, ".q_proj.bias"),
        "output_bias": _has(state, ".o_proj.bias"),
        "qk_norm": (nested and inner.get("model_type") == "qwen3") or _has(state, ".q_norm.weight"),
        "rms_norm_eps": float(inner.get("rms_norm_eps", 1e-6)),
        "hidden_act": inner.get("hidden_act") or "silu",
    }


def _fusion(outer: Config, state: State, target: HeadTarget, source: str, *, version: int) -> dict[str, Any]:
    """What is between the target's features and the first layer, and behind the last."""
    target_hidden = _integer(outer, "target_hidden_size", source, target.hidden)
    if target_hidden != target.hidden:
        raise ModelError(
            f"{source} was made for a target of hidden size {target_hidden}, this one has {target.hidden}: "
            "give the head of this model"
        )
    if version == 1:
        return {"target_hidden": target_hidden, "fc_bias": outer.get("bias") is not False}
    return {
        "target_hidden": target_hidden,
        "feature_layers": _feature_layers(outer, target, source),
        "norm_before_residual": _says(outer, "norm_before_residual"),
        "norm_before_fc": _says(outer, "norm_before_fc") or _has(state, "input_norm.weight"),
        "fc_norm": _says(outer, "fc_norm") or any(key.startswith("fc_norm.") for key in state),
        "norm_output": _says(outer, "norm_output"),
    }


def _feature_layers(outer: Config, target: HeadTarget, source: str) -> tuple[int, ...]:
    """The layers whose inputs are read.

    `eagle_config` (SpecForge, ModelOpt) counts layers whose *outputs* are read, [1, n//2-1, n-4] by default; a list
    beside it (speculators) those whose inputs are.
    """
    inputs = outer.get(_FEATURE_LAYERS)
    outputs = (outer.get("eagle_config") or {}).get(_FEATURE_LAYERS)
    given = inputs or outputs
    if not given:
        return default_feature_layers(target.layers)
    if not isinstance(given, list) or not all(type(layer) is int for layer in given):
        raise ModelError(f"{source} names features that are no layers: expected a list of numbers, found {given}")
    return _checked_layers(tuple(layer + (not inputs) for layer in given), target.layers, source)


def _checked_layers(chosen: tuple[int, ...], layers: int, source: str) -> tuple[int, ...]:
    if len(set(chosen)) < len(chosen) or not all(0 <= layer < layers for layer in chosen):
        raise ModelError(
            f"{source} reads features of layers {list(chosen)}, the target has {layers} layers: expected different "
            f"ones from 0 to {layers - 1} (the default three need a target of at least 7 layers)"
        )
    return chosen


def _has(state: State, ending: str) -> bool:
    return any(key.endswith(ending) for key in state)


def _says(config: Config, name: str) -> bool:
    return config.get(name) is True


def _integer(config: Config, name: str, source: str, default: int | None = None) -> int:
    value = default if config.get(name) is None else config[name]
    if type(value) is not int or value < 1:
        raise ModelError(f"config.json of {source} needs a positive {name}, found {value}")
    return value
