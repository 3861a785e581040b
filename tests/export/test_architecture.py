"""What can't be exported is refused by name, from the configuration alone."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, PreTrainedConfig

from spec_trt.errors import ModelError
from spec_trt.export.architecture import inspect_architecture
from spec_trt.export.quiet import quiet
from tests.families import FAMILIES, VOCAB, make_config

SMALL = {"vocab_size": 120, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def config(family: str, **settings: Any) -> PreTrainedConfig:
    with quiet():
        return AutoConfig.for_model(family, **settings)


@pytest.mark.parametrize(
    ("family", "settings", "reason"),
    [
        ("t5", {}, "t5 is an encoder-decoder"),
        ("bart", {}, "bart is an encoder-decoder"),
        ("whisper", {}, "whisper is an encoder-decoder"),
        ("musicgen", {}, "musicgen is an encoder-decoder"),
        ("llava", {}, "llava is a multimodal model"),
        ("gemma3", {}, "gemma3 is a multimodal model"),
        ("qwen2_vl", {}, "qwen2_vl is a multimodal model"),
        ("vit", {}, "vit is not a causal language model"),
        ("bert", {}, "is_causal=False"),
        ("mamba", {}, "mamba has layers with linear_attention"),
        ("mamba2", {}, "mamba2 has layers with linear_attention"),
        ("jamba", {}, "jamba has layers with linear_attention"),
        ("falcon_h1", {}, "falcon_h1 has layers with hybrid"),
        ("qwen3_next", {}, "qwen3_next has layers with linear_attention"),
        ("rwkv", {}, "rwkv has layers with recurrent state"),
        ("llama4_text", {}, "llama4_text has layers with chunked_attention"),
        ("falcon", SMALL, "falcon does not use transformers' attention interface"),
        ("mpt", {}, "mpt does not use transformers' attention interface"),
        ("bloom", SMALL, "bloom does not use transformers' attention interface"),
        ("gpt_oss", {}, "gpt_oss: .* attention sinks"),
        ("gemma3n_text", {}, "gemma3n_text shares keys and values between layers"),
        ("gemma4_text", {"num_kv_shared_layers": 0}, "gemma4_text has layers of different heads"),
        ("deepseek_v3", {}, "deepseek_v3: values of another size"),
        ("diffllama", {}, "32 of 16 layers attend"),
        ("moshi", {}, "moshi does not hand its sliding window to attention"),
        ("gemma2", {"use_bidirectional_attention": True}, "is_causal=False"),
    ],
)
def test_refused_by_name(family: str, settings: dict[str, Any], reason: str):
    with pytest.raises(ModelError, match=reason):
        inspect_architecture(config(family, **settings))


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_rope_that_depends_on_the_length_is_refused(kind: str):
    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4} if kind == "longrope" else {}
    with pytest.raises(ModelError, match=f"RoPE kind {kind}"):
        inspect_architecture(make_config("llama", rope_parameters={**rope, **factors}))


def test_rope_kinds_of_layer_types_are_seen():
    rope = {"full_attention": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}
    rope["sliding_attention"] = {"rope_type": "default", "rope_theta": 1e4}
    with pytest.raises(ModelError, match="RoPE kind dynamic"):
        inspect_architecture(make_config("gemma3_text", rope_parameters=rope))


def test_a_quantized_checkpoint_is_refused():
    settings = {"quant_method": "gptq", "bits": 4}
    with pytest.raises(ModelError, match=r"quantized \(gptq\)"):
        inspect_architecture(make_config("llama", quantization_config=settings))


@pytest.mark.parametrize(
    ("family", "softcap", "window"),
    [
        ("llama", False, None),
        ("mistral", False, 6),
        ("gemma2", True, 6),
        ("gemma3_text", False, 6),
        ("gpt2", False, None),
    ],
)
def test_found_in_the_dry_run(family: str, softcap: bool, window: int | None):
    found = inspect_architecture(make_config(family))
    assert (found.softcap, found.sliding_window, found.vocab, found.layers) == (softcap, window, VOCAB, 2)


@pytest.mark.parametrize("family", FAMILIES)
def test_inspection_reads_no_weights(family: str):
    kept = make_config(family)
    before = kept.to_dict()
    inspect_architecture(kept)
    assert kept.to_dict() == before
    assert torch.get_default_device() == torch.device("cpu")
