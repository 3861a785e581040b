"""Whether a model can be exported, told from its configuration before any weight is read.

What the configuration says openly is refused by name. The rest shows in a dry run: the model is
built without weights (on PyTorch's meta device) and run over a two-node tree, and every layer's
attention must have asked for something that `TreeAttention` does.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from spec_trt import names
from spec_trt.errors import ModelError
from spec_trt.export.attention import ATTENTION_NAME, AttentionCall, register_attention
from spec_trt.export.base_graph import BaseGraph
from spec_trt.export.quiet import quiet
from spec_trt.plugins.tree_attention.reference import UNLIMITED_WINDOW

__all__ = ["Architecture", "inspect_architecture", "refuse_by_config", "use_tree_attention"]

_ATTENTION_LAYERS = frozenset({"full_attention", "sliding_attention"})
_FIXED_ROPE = frozenset({"default", "linear", "yarn", "llama3", "proportional"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What the dry run found: the dimensions of the cache, and what attention needs.

    Attributes:
        layers: Of the decoder.
        heads: Of queries.
        kv_heads: Of keys and values.
        head_dim: Of queries, keys and values alike.
        hidden: Size of a hidden state.
        vocab: Size of the logits.
        softcap: Whether attention scores are bounded.
        sliding_window: The shortest window of any layer; None if all layers see everything.
        max_positions: Length of the context.
    """

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocab: int
    softcap: bool
    sliding_window: int | None
    max_positions: int

    @property
    def windowed(self) -> bool:
        """Whether any layer has a sliding window."""
        return self.sliding_window is not None


def inspect_architecture(config: PreTrainedConfig) -> Architecture:
    """Build the model without weights and see what its attention layers ask for.

    Raises:
        ModelError: The architecture is not supported; the message says what stands in the way.
    """
    refuse_by_config(config)
    calls, outputs = _dry_run(config)
    layers = config.num_hidden_layers
    if len(calls) != layers:
        raise ModelError(
            f"{config.model_type}: {len(calls)} of {layers} layers attend through transformers' attention "
            "interface; spec-trt exports only models in which all do"
        )
    _refuse_mixed_layers(config, calls)
    _refuse_wrong_windows(config, calls)
    first, shortest = calls[0], min(call.sliding_window for call in calls)
    return Architecture(
        layers=layers,
        heads=first.query.shape[1],
        kv_heads=first.key.shape[1],
        head_dim=first.key.shape[3],
        hidden=outputs[names.HIDDEN_STATES].shape[2],
        vocab=outputs[names.LOGITS].shape[2],
        softcap=bool(first.softcap),
        sliding_window=shortest if shortest != UNLIMITED_WINDOW else None,
        max_positions=config.max_position_embeddings,
    )


def refuse_by_config(config: PreTrainedConfig) -> None:
    """Raise for what the configuration says openly.

    Raises:
        ModelError: Not a decoder-only text model with ordinary attention, quantized, or with a RoPE
            that depends on the sequence.
    """
    kind = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{kind} is an encoder-decoder: spec-trt exports decoder-only language models")
    if config.get_text_config() is not config or any(
        hasattr(config, f"{sense}_config") for sense in ("vision", "audio")
    ):
        raise ModelError(f"{kind} is a multimodal model: spec-trt exports text-only language models")
    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise ModelError(f"{kind} is not a causal language model: spec-trt exports decoder-only language models")
    unsupported = sorted(set(getattr(config, "layer_types", None) or ()) - _ATTENTION_LAYERS)
    if unsupported or _model_class(config)._is_stateful:
        found = ", ".join(unsupported) or "recurrent state"
        raise ModelError(f"{kind} has layers with {found}: spec-trt exports models of attention layers only")
    if getattr(config, "num_kv_shared_layers", 0):
        raise ModelError(f"{kind} shares keys and values between layers: not supported")
    for rope in sorted(set(_rope_kinds(config)) - _FIXED_ROPE):
        raise ModelError(f"{kind} uses the RoPE kind {rope}, which depends on the sequence's length: not supported")
    quantization = getattr(config, "quantization_config", None)
    if quantization is not None:
        method = quantization.get("quant_method")
        raise ModelError(f"the checkpoint is quantized ({method}): export one with plain fp32, fp16 or bf16 weights")
    if not _model_class(config)._can_set_attn_implementation():
        raise ModelError(f"{kind} does not use transformers' attention interface: it can't be exported")


def _model_class(config: PreTrainedConfig) -> type[PreTrainedModel]:
    model_class: type[PreTrainedModel] = AutoModelForCausalLM._model_mapping[type(config)]
    return model_class


def _rope_kinds(config: PreTrainedConfig) -> Iterator[str]:
    """The RoPE kinds of all layers; some families have one per layer type."""
    parameters = getattr(config, "rope_parameters", None) or {}
    for entry in (parameters, *parameters.values()):
        if isinstance(entry, Mapping) and "rope_type" in entry:
            yield entry["rope_type"]


def _dry_run(config: PreTrainedConfig) -> tuple[list[AttentionCall], dict[str, Tensor]]:
    """Run the model without weights over two nodes; return its attention calls and outputs."""
    calls: list[AttentionCall] = []

    def record(call: AttentionCall) -> Tensor:
        if not call.query.shape[3] == call.key.shape[3] == call.value.shape[3]:
            raise ModelError("values of another size than their keys are not supported")
        calls.append(call)
        return torch.empty_like(call.query)

    try:
        with quiet(), torch.device("meta"), torch.no_grad():
            model = use_tree_attention(AutoModelForCausalLM.from_config(_without_padding(config)))
            graph = BaseGraph(model, record, windowed=True).eval()
            no_cache = [torch.empty(0)] * (2 * config.num_hidden_layers)
            ids, row = torch.zeros(1, 2, dtype=torch.long), torch.zeros(1, 1, dtype=torch.long)
            outputs = graph(ids, ids, row[0], torch.ones(1, 2, 2, dtype=torch.bool), row, no_cache)
    except ModelError as error:
        raise ModelError(f"{config.model_type}: {error}") from error
    except Exception as error:
        raise ModelError(f"{config.model_type} does not run over a token tree: {_first_line(error)}") from error
    return calls, dict(zip(graph.output_names, outputs, strict=True))


def use_tree_attention(model: PreTrainedModel) -> PreTrainedModel:
    """Set what tracing needs: the tree's attention, and experts without data-dependent shapes."""
    register_attention()
    model.set_attn_implementation(ATTENTION_NAME)
    if model._can_set_experts_implementation():
        model.set_experts_implementation("batched_mm")
    return model


def _without_padding(config: PreTrainedConfig) -> PreTrainedConfig:
    """A model that knows its padding token looks for it in the input, which has no values here."""
    plain = copy.deepcopy(config)
    plain.pad_token_id = None
    return plain


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _refuse_mixed_layers(config: PreTrainedConfig, calls: Sequence[AttentionCall]) -> None:
    """All layers share one cache allocation and one function, so they must be alike."""
    kinds = {(call.query.shape, call.key.shape, call.value.shape, bool(call.softcap)) for call in calls}
    if len(kinds) > 1:
        raise ModelError(f"{config.model_type} has layers of different heads, head sizes or softcaps: not supported")


def _refuse_wrong_windows(config: PreTrainedConfig, calls: Sequence[AttentionCall]) -> None:
    """A sliding window that the configuration promises must have reached the attention function."""
    found = [call.sliding_window for call in calls]
    expected = [window or UNLIMITED_WINDOW for window in _windows(config)]
    if found != expected:
        raise ModelError(
            f"{config.model_type} does not hand its sliding window to attention: "
            f"expected {expected} for its layers, found {found}"
        )


def _windows(config: PreTrainedConfig) -> list[int | None]:
    """Each layer's sliding window as the configuration has it."""
    window = getattr(config, "sliding_window", None)
    kinds: Sequence[Any] = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    return [window if kind == "sliding_attention" else None for kind in kinds]
