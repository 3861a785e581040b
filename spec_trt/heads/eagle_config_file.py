"""The config.json of an EAGLE draft, as other engines read it."""

from typing import Any

from spec_trt.heads.eagle import EagleConfig

__all__ = ["eagle_config_file"]


def eagle_config_file(config: EagleConfig, vocab: int) -> dict[str, Any]:
    """Describe a draft.

    Args:
        config: Its shape.
        vocab: Rows of its embedding.
    """
    described: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM" if config.version == 1 else "LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": config.hidden_act,
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": config.max_positions,
        "rope_theta": config.rope_parameters.get("rope_theta"),
        "rope_parameters": config.rope_parameters,
        "attention_bias": config.qkv_bias,
        "qkv_bias": config.qkv_bias,
        "vocab_size": vocab,
        "tie_word_embeddings": False,
    }
    return described | (_eagle(config) if config.version == 1 else _eagle3(config))


def _eagle(config: EagleConfig) -> dict[str, Any]:
    return {"bias": config.fc_bias}


def _eagle3(config: EagleConfig) -> dict[str, Any]:
    return {
        "draft_vocab_size": config.draft_vocab,
        "target_hidden_size": config.target_hidden,
        "eagle_aux_hidden_state_layer_ids": list(config.feature_layers),
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": config.norm_before_fc,
        "fc_norm": config.fc_norm,
        "norm_output": config.norm_output,
    }
