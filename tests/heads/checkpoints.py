"""Tiny random checkpoints of every public form, written from the formats' definitions, not by the code under test."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from spec_trt.heads.target import HeadTarget, head_target
from tests.families import VOCAB, make_model

Tensors = dict[str, Tensor]

HIDDEN = 32
THETA = 5000.0
LAYERS = 7  # of the target: the fewest whose default feature layers, 2, n//2 and n-3, differ
DRAFT_IDS = [2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 299]
SHAPE: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,  # not hidden / heads
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "vocab_size": VOCAB,
    "max_position_embeddings": 16,  # stale, as published ones are
    "rope_theta": 10000.0,
}


@cache
def make_target(family: str = "llama", **changes: Any) -> HeadTarget:
    """The target side of a tiny model; llama's is deep enough for EAGLE-3, its RoPE not the default one."""
    if family == "llama":
        changes = {
            "num_hidden_layers": LAYERS,
            "rope_parameters": {"rope_type": "default", "rope_theta": THETA},
        } | changes
    return head_target(make_model(family, **changes))


def write(directory: Path, tensors: Tensors, config: dict[str, Any] | None, file: str = "model.safetensors") -> Path:
    """Write weights, by the file's ending, and a config."""
    directory.mkdir(parents=True, exist_ok=True)
    if file.endswith(".safetensors"):
        save_file(tensors, directory / file)
    else:
        torch.save(tensors, directory / file)
    if config is not None:
        (directory / "config.json").write_text(json.dumps(config))
    return directory


def write_shards(directory: Path, tensors: Tensors, config: dict[str, Any], *, ending: str = "safetensors") -> Path:
    """Write weights in two files and their index."""
    stem = "model" if ending == "safetensors" else "pytorch_model"
    names = [f"{stem}-0000{number}-of-00002.{ending}" for number in (1, 2)]
    weight_map = {key: names[number % 2] for number, key in enumerate(tensors)}
    for name in names:
        write(directory, {key: tensors[key] for key in tensors if weight_map[key] == name}, config, name)
    (directory / f"{stem}.{ending}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return directory


def random_tensors(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> Tensors:
    """Seeded weights; norms around 1, no bias 0."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for key, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        is_norm = "norm" in key and len(shape) == 1
        made[key] = 1.0 + 0.3 * noise if is_norm else noise * (0.3 if len(shape) == 1 else shape[-1] ** -0.5)
    return made


def medusa_tensors(*, heads: int = 3, layers: int = 1, own: bool = True, prefix: str = "") -> Tensors:
    """`{h}.{l}.linear.*` and, where heads have projections of their own, `{h}.{L}.weight`."""
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(heads):
        for layer in range(layers):
            shapes[f"{prefix}{head}.{layer}.linear.weight"] = (HIDDEN, HIDDEN)
            shapes[f"{prefix}{head}.{layer}.linear.bias"] = (HIDDEN,)
        if own:
            shapes[f"{prefix}{head}.{layers}.weight"] = (VOCAB, HIDDEN)
    return random_tensors(shapes)


def write_medusa_v1(directory: Path, *, heads: int = 3, layers: int = 1, file: str = "medusa_lm_head.pt") -> Tensors:
    """Medusa v1, its config wrong about the number of heads, as published ones are."""
    tensors = medusa_tensors(heads=heads, layers=layers)
    write(directory, tensors, {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "base"}, file)
    return tensors


def write_medusa_v2(directory: Path, *, heads: int = 3, layers: int = 1, draft_ids: list[int] | None = None) -> Tensors:
    """Medusa v2: blocks alone."""
    tensors = medusa_tensors(heads=heads, layers=layers, own=False)
    config = {"version": "2", "medusa_num_heads": heads, "medusa_num_layers": layers}
    if draft_ids is not None:
        tensors["d2t"] = offsets(draft_ids)
        config |= {"draft_vocab_size": len(draft_ids)}
    write(directory, tensors, config, "medusa_lm_head.safetensors")
    return tensors


def add_medusa_heads(model: Path, *, heads: int = 3, layers: int = 1, prefix: str = "medusa_head.") -> Tensors:
    """Put heads among the weights of a saved Hugging Face model (Medusa-2): the config says nothing of them."""
    tensors = medusa_tensors(heads=heads, layers=layers, prefix=prefix)
    save_file(load_file(model / "model.safetensors") | tensors, model / "model.safetensors", {"format": "pt"})
    return tensors


def write_medusa_modelopt(directory: Path, *, heads: int = 3, layers: int = 1) -> Tensors:
    """ModelOpt's Medusa: another prefix, the config nested."""
    tensors = medusa_tensors(heads=heads, layers=layers, prefix="medusa_heads.")
    write(directory, tensors, {"medusa": {"num_medusa_heads": heads, "num_medusa_layers": layers}})
    return tensors


def layer_shapes(prefix: str, *, width: int = HIDDEN, bias: bool = False, qk_norm: bool = False) -> dict[str, Any]:
    """A decoder layer without its input norms."""
    rows = {"q": 64, "k": 32, "v": 32}
    shapes: dict[str, tuple[int, ...]] = {f"{prefix}self_attn.{name}_proj.weight": (rows[name], width) for name in rows}
    if bias:
        shapes |= {f"{prefix}self_attn.{name}_proj.bias": (rows[name],) for name in rows}
    if qk_norm:
        shapes |= {f"{prefix}self_attn.{name}_norm.weight": (16,) for name in "qk"}
    return shapes | {
        f"{prefix}self_attn.o_proj.weight": (HIDDEN, 64),
        f"{prefix}mlp.gate_proj.weight": (48, HIDDEN),
        f"{prefix}mlp.up_proj.weight": (48, HIDDEN),
        f"{prefix}mlp.down_proj.weight": (HIDDEN, 48),
        f"{prefix}post_attention_layernorm.weight": (HIDDEN,),
    }


def write_eagle(
    directory: Path,
    *,
    bias: bool = True,
    qkv_bias: bool = False,
    embedding: bool = True,
    draft_ids: list[int] | None = None,
    file: str = "pytorch_model.bin",
    **config: Any,
) -> Tensors:
    """EAGLE and EAGLE-2."""
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (HIDDEN, 2 * HIDDEN), **layer_shapes("layers.0.", bias=qkv_bias)}
    if bias:
        shapes["fc.bias"] = (HIDDEN,)
    if embedding:
        shapes["embed_tokens.weight"] = (VOCAB, HIDDEN)
    tensors = random_tensors(shapes)
    settings = SHAPE | {"bias": bias, "qkv_bias": qkv_bias, "architectures": ["LlamaForCausalLM"]}
    if draft_ids is not None:
        tensors["d2t"] = offsets(draft_ids)
        settings |= {"draft_vocab_size": len(draft_ids)}
    write(directory, tensors, settings | config, file)
    return tensors


def eagle3_tensors(
    first: str = "midlayer.",
    *,
    features: int = 3,
    draft_vocab: int = len(DRAFT_IDS),
    lm_head: bool = True,
    norm_before_fc: bool = False,
    fc_norm: bool = False,
    qk_norm: bool = False,
    embedding: bool = False,
    more_layers: int = 0,
) -> Tensors:
    """An EAGLE-3 draft without maps."""
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (HIDDEN, features * HIDDEN),
        "norm.weight": (HIDDEN,),
        f"{first}hidden_norm.weight": (HIDDEN,),
        f"{first}input_layernorm.weight": (HIDDEN,),
        **layer_shapes(first, width=2 * HIDDEN, qk_norm=qk_norm),
    }
    for layer in range(1, 1 + more_layers):
        shapes |= layer_shapes(f"layers.{layer}.", qk_norm=qk_norm)
        shapes[f"layers.{layer}.input_layernorm.weight"] = (HIDDEN,)
    if norm_before_fc:
        shapes["input_norm.weight"] = (features * HIDDEN,)
    if fc_norm:
        shapes |= {f"fc_norm.{index}.weight": (HIDDEN,) for index in range(features)}
    if lm_head:
        shapes["lm_head.weight"] = (draft_vocab, HIDDEN)
    if embedding:
        shapes["embed_tokens.weight"] = (VOCAB, HIDDEN)
    return random_tensors(shapes)


def write_eagle3(directory: Path, *, file: str = "pytorch_model.bin", **config: Any) -> Tensors:
    """The reference's and SpecForge's form; SpecForge's norms by `fc_norm` and `norm_output` in `config`."""
    tensors = eagle3_tensors(fc_norm=config.get("fc_norm", False)) | maps(DRAFT_IDS)
    settings = SHAPE | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": len(DRAFT_IDS)}
    write(directory, tensors, settings | config, file)
    return tensors


def write_eagle3_modelopt(directory: Path, *, reduced: bool = True, **config: Any) -> Tensors:
    """ModelOpt's form: `layers.0.`, no `t2d`, `d2t` and `lm_head` only for a reduced vocabulary."""
    tensors = eagle3_tensors("layers.0.", lm_head=reduced)
    if reduced:
        tensors["d2t"] = offsets(DRAFT_IDS)
    settings = SHAPE | {"draft_vocab_size": len(DRAFT_IDS) if reduced else VOCAB, "eagle_config": {}}
    write(directory, tensors, settings | config)
    return tensors


def write_speculators(
    directory: Path,
    *,
    features: int = 3,
    model_type: str = "llama",
    embedding: bool = True,
    more_layers: int = 0,
    rope: dict[str, Any] | None = None,
    **config: Any,
) -> Tensors:
    """The speculators form; `config` takes norm_before_residual, norm_before_fc, fc_norm, norm_output and layer ids."""
    tensors = eagle3_tensors(
        "layers.0.",
        features=features,
        norm_before_fc=config.get("norm_before_fc", False),
        fc_norm=config.get("fc_norm", False),
        qk_norm=model_type == "qwen3",
        embedding=embedding,
        more_layers=more_layers,
    )
    tensors |= maps(DRAFT_IDS)
    settings = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "base"}},
        "draft_vocab_size": len(DRAFT_IDS),
        "norm_before_residual": False,
        "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": None,
        "transformer_layer_config": SHAPE | {"model_type": model_type} | (rope or {}),
    }
    write(directory, tensors, settings | config)
    return tensors


def offsets(draft_ids: list[int]) -> Tensor:
    """Ids as `d2t` keeps them."""
    return torch.tensor([token - row for row, token in enumerate(draft_ids)])


def maps(draft_ids: list[int]) -> Tensors:
    """`d2t` and `t2d`."""
    return {"d2t": offsets(draft_ids), "t2d": torch.tensor([token in draft_ids for token in range(VOCAB)])}
