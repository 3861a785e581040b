"""A tiny random model of every family that the exporter is tested with."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from spec_trt.export.quiet import quiet

# Together with the hidden size, so large that the converter does not store tied embeddings twice.
VOCAB = 300

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_WINDOWS: dict[str, Any] = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}
_TOKENS = {"vocab_size": VOCAB, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_EXPERTS = {"num_experts_per_tok": 2, "num_local_experts": 4}

# What each family's configuration says beside `_COMMON`; gpt2 and opt have names of their own.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "mistral": {"sliding_window": 6},
    "ministral": {"head_dim": 8, **_WINDOWS},
    "qwen2": {"use_sliding_window": True, "max_window_layers": 1, **_WINDOWS},
    "qwen3": {"head_dim": 16},
    "qwen3_moe": {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    "mixtral": {**_EXPERTS, "sliding_window": 6},
    "phi": {"partial_rotary_factor": 0.5},
    "phi3": {"sliding_window": 6},
    "gemma2": {
        "head_dim": 16,
        "query_pre_attn_scalar": 12,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 5.0,
        "tie_word_embeddings": False,
        **_WINDOWS,
    },
    "gemma3_text": {"head_dim": 16, "query_pre_attn_scalar": 12, **_WINDOWS},
    "smollm3": {"no_rope_layers": [1, 0]},
    "granite": {
        "embedding_multiplier": 2.0,
        "attention_multiplier": 0.3,
        "residual_multiplier": 0.5,
        "logits_scaling": 3.0,
    },
    "olmo2": {},
    "stablelm": {"use_qkv_bias": True, "partial_rotary_factor": 0.5},
    "gpt_neox": {"rotary_pct": 0.5},
    "gpt2": {**_TOKENS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "opt": {
        **_TOKENS,
        "hidden_size": 32,
        "ffn_dim": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 128,
        "word_embed_proj_dim": 24,
    },
    "starcoder2": {"sliding_window": 6, "tie_word_embeddings": False},
    "cohere": {"logit_scale": 0.5, "use_qk_norm": True},
    "glm4": {"head_dim": 8},
    "exaone4": {**_WINDOWS},
}


def make_config(family: str, **changes: Any) -> PreTrainedConfig:
    """The family's tiny configuration, changed."""
    own_names = family in ("gpt2", "opt")
    with quiet():
        config: PreTrainedConfig = AutoConfig.for_model(
            family, **({} if own_names else _COMMON) | FAMILIES[family] | changes
        )
    return config


def make_model(family: str, **changes: Any) -> PreTrainedModel:
    """Make a seeded random model; every parameter, biases and norms included, is away from 0 and 1."""
    with quiet():
        model: PreTrainedModel = AutoModelForCausalLM.from_config(make_config(family, **changes)).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.add_(noise * 0.2)
            else:
                parameter.copy_(noise * 2.0 * parameter.shape[-1] ** -0.5)
        model.get_input_embeddings().weight.mul_(0.2)  # or tied models repeat the last token
    return model


def save_model(model: PreTrainedModel, directory: Path) -> Path:
    """Write a model as a Hugging Face directory."""
    with quiet():
        model.save_pretrained(directory)
    return directory
