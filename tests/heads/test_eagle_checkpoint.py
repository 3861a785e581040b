import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import embedding, scaled_dot_product_attention

from spec_trt.errors import ConfigError, ModelError
from spec_trt.heads.eagle import EagleConfig, EagleDraft
from spec_trt.heads.eagle_checkpoint import load_eagle, save_eagle
from spec_trt.heads.projection import Projection
from spec_trt.heads.target import head_target
from tests.families import VOCAB, make_model, save_model
from tests.heads import reference
from tests.heads.checkpoints import (
    DRAFT_IDS,
    HIDDEN,
    SHAPE,
    THETA,
    eagle3_tensors,
    make_target,
    maps,
    offsets,
    random_tensors,
    write,
    write_eagle,
    write_eagle3,
    write_eagle3_modelopt,
    write_medusa_v1,
    write_shards,
    write_speculators,
)

NODES = 40  # more than the drafts' own max_position_embeddings


@pytest.fixture
def target():
    return make_target()


@pytest.fixture(scope="module")
def ids():
    return torch.randint(0, VOCAB, (2, NODES), generator=torch.Generator().manual_seed(4))


@pytest.fixture(scope="module")
def features():
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(2, NODES, HIDDEN, generator=generator) for _ in range(4)]


def causal(_layer, query, key, value):
    return scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)


def run(draft, ids, features):
    return draft(ids, draft.fuse(torch.cat(features, dim=-1)), torch.arange(NODES).expand(2, NODES), causal)


def close(output, expected):
    torch.testing.assert_close(output.logits, expected.logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(output.next_features, expected.next_features, atol=1e-4, rtol=1e-4)


def embedded(tensors, target, ids):
    return embedding(ids, tensors.get("embed_tokens.weight", target.embedding))


def check_eagle(loaded, tensors, target, ids, features, theta=THETA):
    lm_head = target.projection.weight if loaded.draft_ids is None else target.projection.weight[loaded.draft_ids]
    expected = reference.eagle(tensors, embedded(tensors, target, ids), features[0], lm_head, theta)
    close(run(loaded.draft, ids, features[:1]), expected)


def check_eagle3(loaded, tensors, target, ids, features, count=3, theta=THETA, **options):
    lm_head = tensors.get("lm_head.weight", target.projection.weight)
    fused = reference.fuse(tensors, features[:count])
    torch.testing.assert_close(loaded.draft.fuse(torch.cat(features[:count], dim=-1)), fused, atol=1e-4, rtol=1e-4)
    expected = reference.eagle3(tensors, embedded(tensors, target, ids), fused, lm_head, theta, **options)
    close(run(loaded.draft, ids, features[:count]), expected)


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.safetensors"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("options", [{"embedding": True, "qkv_bias": True}, {"embedding": False, "qkv_bias": False}])
def test_eagle(tmp_path, target, ids, features, file, bias, options):
    tensors = write_eagle(tmp_path / "head", bias=bias, file=file, **options)
    loaded = load_eagle(tmp_path / "head", target)
    assert (loaded.draft.config.version, loaded.draft_ids, loaded.source) == (1, None, "head")
    check_eagle(loaded, tensors, target, ids, features)


def test_eagle_whose_config_says_nothing_of_a_bias_has_one(tmp_path, target, ids, features):
    tensors = write_eagle(tmp_path, file="model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({key: SHAPE[key] for key in SHAPE}))
    check_eagle(load_eagle(tmp_path, target), tensors, target, ids, features)


def test_eagle_with_a_reduced_vocabulary(tmp_path, target, ids, features):
    tensors = write_eagle(tmp_path, draft_ids=DRAFT_IDS, embedding=False)
    loaded = load_eagle(tmp_path, target)
    assert loaded.draft_ids == DRAFT_IDS
    check_eagle(loaded, tensors, target, ids, features)


@pytest.mark.parametrize("ending", ["safetensors", "bin"])
def test_shards(tmp_path, target, ids, features, ending):
    tensors = write_eagle(tmp_path / "whole")
    settings = json.loads((tmp_path / "whole" / "config.json").read_text())
    loaded = load_eagle(write_shards(tmp_path / "head", tensors, settings, ending=ending), target)
    check_eagle(loaded, tensors, target, ids, features)


def test_eagle3_of_the_reference(tmp_path, target, ids, features):
    tensors = write_eagle3(tmp_path)
    loaded = load_eagle(tmp_path, target)
    assert (loaded.draft.config.version, loaded.draft.config.feature_layers) == (3, (2, 3, 4))
    assert loaded.draft_ids == DRAFT_IDS
    check_eagle3(loaded, tensors, target, ids, features)


def test_eagle3_with_the_whole_vocabulary_has_no_maps(tmp_path, target, ids, features):
    tensors = eagle3_tensors(draft_vocab=VOCAB)
    write(tmp_path, tensors, SHAPE | {"draft_vocab_size": VOCAB})
    loaded = load_eagle(tmp_path, target)
    assert loaded.draft_ids is None
    check_eagle3(loaded, tensors, target, ids, features)


def test_eagle3_without_its_rows_takes_the_targets(tmp_path, target, ids, features):
    tensors = eagle3_tensors(lm_head=False, embedding=True) | maps(DRAFT_IDS)
    write(tmp_path, tensors, SHAPE | {"draft_vocab_size": len(DRAFT_IDS)})
    rows = {"lm_head.weight": target.projection.weight[DRAFT_IDS]}
    check_eagle3(load_eagle(tmp_path, target), tensors | rows, target, ids, features)


@pytest.mark.parametrize("options", [{"fc_norm": True}, {"norm_output": True}, {"fc_norm": True, "norm_output": True}])
def test_specforge(tmp_path, target, ids, features, options):
    tensors = write_eagle3(tmp_path, file="model.safetensors", **options)
    loaded = load_eagle(tmp_path, target)
    check_eagle3(loaded, tensors, target, ids, features, norm_output=options.get("norm_output", False))


@pytest.mark.parametrize("reduced", [True, False])
def test_modelopt(tmp_path, target, ids, features, reduced):
    tensors = write_eagle3_modelopt(tmp_path, reduced=reduced)
    loaded = load_eagle(tmp_path, target)
    assert loaded.draft_ids == (DRAFT_IDS if reduced else None)
    check_eagle3(loaded, tensors, target, ids, features, first="layers.0.")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm_before_residual": True},
        {"norm_before_fc": True, "norm_output": True},
        {"fc_norm": True, "embedding": False},
        {"model_type": "qwen3", "norm_before_residual": True},
        {"more_layers": 2},
        {"model_type": "qwen3", "more_layers": 1},
        {"features": 4, "eagle_aux_hidden_state_layer_ids": [0, 1, 2, 6]},
        {"features": 2, "fc_norm": True, "eagle_aux_hidden_state_layer_ids": [5, 1]},
    ],
    ids=str,
)
def test_speculators(tmp_path, target, ids, features, options):
    tensors = write_speculators(tmp_path, **options)
    loaded = load_eagle(tmp_path, target)
    named = options.get("eagle_aux_hidden_state_layer_ids", [2, 3, 4])
    assert loaded.draft.config.feature_layers == tuple(named)
    assert (loaded.draft_ids, loaded.notes) == (DRAFT_IDS, ["its rope_theta 10000 is not used, the target's 5000 is"])
    forward = {key: options[key] for key in ("norm_before_residual", "norm_output", "more_layers") if key in options}
    check_eagle3(loaded, tensors, target, ids, features, len(named), first="layers.0.", **forward)


def test_speculators_that_say_nothing_of_the_residual_are_noted(tmp_path, target):
    write_speculators(tmp_path, norm_before_residual=None)
    assert "norm_before_residual is not in its config: taken as false" in load_eagle(tmp_path, target).notes


def test_nested_feature_layers_are_those_whose_outputs_are_read(tmp_path, target):
    write_eagle3(tmp_path, eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 2, 3], "use_aux_hidden_state": True})
    assert load_eagle(tmp_path, target).draft.config.feature_layers == (2, 3, 4)


def test_nested_norms_are_read(tmp_path, target, ids, features):
    tensors = write_eagle3(tmp_path, eagle_config={"norm_output": True})
    check_eagle3(load_eagle(tmp_path, target), tensors, target, ids, features, norm_output=True)


@pytest.mark.parametrize("write_head", [write_eagle, write_eagle3])
def test_names_of_directory_and_architecture_do_not_decide_the_version(tmp_path, target, write_head):
    for name, architecture in (("eagle-head", "LlamaForCausalLM"), ("eagle3-head", "LlamaForCausalLMEagle3")):
        write_head(tmp_path / name, architectures=[architecture])
        version = load_eagle(tmp_path / name, target).draft.config.version
        assert version == (1 if write_head is write_eagle else 3)


def test_old_rotary_buffers_are_ignored_and_named(tmp_path, target, ids, features):
    tensors = write_eagle(tmp_path)
    buffer = {"layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    torch.save(tensors | buffer, tmp_path / "pytorch_model.bin")
    loaded = load_eagle(tmp_path, target)
    assert "ignored, a head computes them: layers.0.self_attn.rotary_emb.inv_freq" in loaded.notes
    check_eagle(loaded, tensors, target, ids, features)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 777.0},
        {"rope_theta": 777.0, "rope_scaling": {"type": "default"}},
        {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 777.0}},
    ],
    ids=["transformers-4", "scaling", "transformers-5"],
)
@pytest.mark.parametrize("write_head", [write_eagle, write_speculators])
def test_rope_is_the_drafts_where_the_target_has_none(tmp_path, ids, features, rope, write_head):
    target = replace(make_target(), rope_parameters=None)
    if write_head is write_eagle:
        tensors = write_eagle(tmp_path, **rope)
        check_eagle(load_eagle(tmp_path, target), tensors, target, ids, features, theta=777.0)
    else:
        tensors = write_speculators(tmp_path, rope=rope)
        loaded = load_eagle(tmp_path, target)
        check_eagle3(loaded, tensors, target, ids, features, theta=777.0, first="layers.0.")


def test_length_is_the_targets(tmp_path, target):
    write_eagle(tmp_path)
    assert load_eagle(tmp_path, target).draft.config.max_positions == target.max_positions > 16


def test_half_precision_keeps_the_positions_exact(tmp_path, target):
    write_eagle3(tmp_path)
    half = head_target(make_model("llama", num_hidden_layers=7).to(torch.bfloat16))
    draft = load_eagle(tmp_path, half).draft
    assert {tensor.dtype for tensor in draft.state_dict().values()} == {torch.bfloat16}
    exact = load_eagle(tmp_path, replace(target, rope_parameters=half.rope_parameters)).draft
    assert torch.equal(draft.get_buffer("rotary.inv_freq"), exact.get_buffer("rotary.inv_freq"))


def test_a_partly_rotating_target_has_a_draft_that_rotates_whole_heads(tmp_path, ids, features):
    rope = {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5}
    target = replace(make_target(), rope_parameters=rope)
    tensors = write_eagle(tmp_path)
    check_eagle(load_eagle(tmp_path, target), tensors, target, ids, features)


def test_a_draft_of_another_width_brings_its_own_tables(tmp_path, target):
    narrow = replace(target, embedding=torch.zeros(VOCAB, 24), projection=Projection(torch.zeros(VOCAB, 24)))
    shape = {"target_hidden_size": 24, "draft_vocab_size": len(DRAFT_IDS)}
    tensors = eagle3_tensors(embedding=True) | maps(DRAFT_IDS) | random_tensors({"fc.weight": (HIDDEN, 72)})
    write(tmp_path / "wide", tensors, SHAPE | shape)
    draft = load_eagle(tmp_path / "wide", narrow).draft
    assert draft.fuse(torch.zeros(1, 1, 72)).shape == (1, 1, HIDDEN)
    del tensors["embed_tokens.weight"], tensors["lm_head.weight"]
    write(tmp_path / "bare", tensors, SHAPE | shape)
    with pytest.raises(ModelError, match=r"2 missing \(embed_tokens.weight, lm_head.weight\)"):
        load_eagle(tmp_path / "bare", narrow)


def refused(path, target):
    with pytest.raises(ModelError) as caught:
        load_eagle(path, target)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_fault_is_named_in_one_line(tmp_path, target):
    tensors = eagle3_tensors() | maps(DRAFT_IDS)
    del tensors["midlayer.hidden_norm.weight"], tensors["d2t"]
    tensors["norm.weight"] = torch.zeros(3)
    tensors["midlayer.mlp.up_proj.weight"] = torch.zeros(48, HIDDEN, dtype=torch.int8)
    tensors["midlayer.mlp.up_proj.scale"] = torch.zeros(48)
    write(tmp_path / "bad", tensors, SHAPE | {"draft_vocab_size": len(DRAFT_IDS)})
    assert refused(tmp_path / "bad", target) == (
        "bad is no EAGLE-3 head that fits the target and its config: 2 missing (d2t, midlayer.hidden_norm.weight); "
        "1 unknown (midlayer.mlp.up_proj.scale); 1 of another shape (norm.weight [3] instead of [32]); "
        "1 not of floating point (midlayer.mlp.up_proj.weight torch.int8)"
    )


def test_a_layer_of_transformers_means_its_attention_bias(tmp_path, target):
    write_speculators(tmp_path / "nested", rope={"attention_bias": True})
    names = ", ".join(f"layers.0.self_attn.{name}_proj.bias" for name in "kqv")
    assert f"3 missing ({names})" in refused(tmp_path / "nested", target)
    write_eagle(tmp_path / "copied", attention_bias=True)
    assert not load_eagle(tmp_path / "copied", target).draft.config.qkv_bias


def test_a_first_layer_under_both_names_is_refused(tmp_path, target):
    tensors = eagle3_tensors() | maps(DRAFT_IDS) | {"layers.0.hidden_norm.weight": torch.ones(HIDDEN)}
    write(tmp_path, tensors, SHAPE | {"draft_vocab_size": len(DRAFT_IDS)})
    assert "1 unknown (layers.0.hidden_norm.weight)" in refused(tmp_path, target)


def test_a_bias_that_the_config_promises_is_missed(tmp_path, target):
    tensors = write_eagle(tmp_path, bias=False, file="model.safetensors")
    write(tmp_path, tensors, SHAPE | {"bias": True, "qkv_bias": True})
    names = ", ".join(["fc.bias", *(f"layers.0.self_attn.{name}_proj.bias" for name in "kqv")])
    assert f"EAGLE head that fits the target and its config: 4 missing ({names})" in refused(tmp_path, target)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"hidden_size": None}, "needs a positive hidden_size, found None"),
        ({"num_attention_heads": "4"}, "needs a positive num_attention_heads, found 4"),
        ({"num_key_value_heads": 3}, "makes no sense: 4 heads can't share 3 key-value heads evenly"),
        ({"hidden_act": "swish9"}, "makes no sense: "),
        ({"rms_norm_eps": "tiny"}, "makes no sense: could not convert string to float"),
        ({"target_hidden_size": 64}, "made for a target of hidden size 64, this one has 32"),
        ({"draft_vocab_size": 5000}, "has draft_vocab_size 5000: expected at most 300"),
        ({"draft_vocab_size": 11}, "2 of another shape (d2t [12] instead of [11], lm_head.weight [12, 32] instead"),
        ({"norm_before_fc": True, "fc_norm": True}, "either norm_before_fc or fc_norm, found both"),
        (
            {"eagle_aux_hidden_state_layer_ids": [2, 2, 4]},
            "reads features of layers [2, 2, 4], the target has 7",
        ),
        ({"eagle_aux_hidden_state_layer_ids": [2, 3, 7]}, "expected different ones from 0 to 6"),
        ({"eagle_aux_hidden_state_layer_ids": "early"}, "expected a list of numbers, found early"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 3]}, "fc.weight [32, 96] instead of [32, 64]"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "reads one feature"),
        ({"eagle_config": [1]}, "makes no sense: eagle_config is no object"),
        ({"transformer_layer_config": "llama"}, "makes no sense: transformer_layer_config is no object"),
        ({"speculators_model_type": "dflash"}, "is a speculators model of type dflash: expected eagle3"),
    ],
)
def test_configs_that_do_not_fit_are_refused(tmp_path, target, config, message):
    tensors = eagle3_tensors(fc_norm=config.get("fc_norm", False)) | maps(DRAFT_IDS)
    settings = SHAPE | {"draft_vocab_size": len(DRAFT_IDS)}
    assert message in refused(write(tmp_path, tensors, settings | config), target)


def test_a_shallow_target_has_no_default_feature_layers(tmp_path, target):
    write_eagle3(tmp_path)
    message = refused(tmp_path, replace(target, layers=6))
    assert "reads features of layers [2, 3, 3], the target has 6 layers" in message
    assert "at least 7 layers" in message


def test_maps_that_make_no_sense_are_refused(tmp_path, target):
    tensors = eagle3_tensors() | {"d2t": torch.arange(12).flip(0) * 7}
    write(tmp_path, tensors, SHAPE | {"draft_vocab_size": len(DRAFT_IDS)})
    assert "neither a map of offsets nor of ids" in refused(tmp_path, target)


def test_a_direct_map_is_understood(tmp_path, target):
    tensors = eagle3_tensors() | {"d2t": torch.tensor(DRAFT_IDS)}
    write(tmp_path, tensors, SHAPE | {"draft_vocab_size": len(DRAFT_IDS)})
    assert load_eagle(tmp_path, target).draft_ids == DRAFT_IDS


@pytest.mark.parametrize("kind", ["medusa", "model"])
def test_something_else_is_no_eagle_head(tmp_path, target, kind):
    if kind == "medusa":
        write_medusa_v1(tmp_path, file="model.safetensors")
    else:
        save_model(make_model("llama"), tmp_path)
    assert "holds no EAGLE head: expected keys such as fc.weight" in refused(tmp_path, target)


def test_a_head_without_a_config_is_refused(tmp_path, target):
    write_eagle(tmp_path)
    (tmp_path / "config.json").unlink()
    assert "has no config.json: expected one beside the weights" in refused(tmp_path, target)


def random_draft(target, *, version, draft_ids=None, own=False, layers=1, **variant):
    base = target.projection if draft_ids is None else target.projection.narrowed(draft_ids)
    if own:
        generator = torch.Generator().manual_seed(8)
        base = base.with_weight(torch.randn(base.weight.shape, generator=generator) * 0.1)
    config = EagleConfig(
        version=version,
        hidden=HIDDEN,
        intermediate=48,
        heads=4,
        kv_heads=2,
        head_dim=16,
        target_hidden=HIDDEN,
        draft_vocab=len(base.weight),
        rope_parameters=dict(target.rope_parameters),
        max_positions=target.max_positions,
        feature_layers=(2, 3, 4) if version == 3 else (),
        layers=layers,
        **variant,
    )
    torch.manual_seed(6)
    return EagleDraft(config, target.embedding, base)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("draft_ids", [None, DRAFT_IDS])
@pytest.mark.parametrize(
    "variant",
    [
        {"version": 1},
        {"version": 1, "fc_bias": True, "qkv_bias": True, "layers": 2},
        {"version": 3},
        {"version": 3, "norm_before_residual": True, "norm_before_fc": True, "norm_output": True, "layers": 2},
        {"version": 3, "fc_norm": True, "qk_norm": True, "output_bias": True, "rms_norm_eps": 1e-5},
    ],
    ids=str,
)
def test_a_saved_draft_loads_as_it_was(tmp_path, target, ids, features, variant, draft_ids, own):
    draft = random_draft(target, draft_ids=draft_ids, own=own, **variant)
    tree = [[0], [0, 0]]
    save_eagle(draft, tmp_path, draft_ids=draft_ids, standalone=False, tree=tree, dtype=torch.float32)
    loaded = load_eagle(tmp_path, target)
    assert (loaded.draft_ids, loaded.tree, loaded.draft.config) == (draft_ids, tree, draft.config)
    count = 1 if draft.config.version == 1 else 3
    close(run(loaded.draft, ids, features[:count]), run(draft, ids, features[:count]))


@pytest.mark.parametrize("version", [1, 3])
def test_the_slim_form_is_half_precision_and_holds_nothing_of_the_target(tmp_path, target, version):
    draft = random_draft(target, version=version, draft_ids=DRAFT_IDS)
    save_eagle(draft, tmp_path, draft_ids=DRAFT_IDS, standalone=False, card={"tokens": 5})
    tensors = load_file(tmp_path / "model.safetensors")
    whole = write_eagle(tmp_path / "x", bias=False, embedding=False) if version == 1 else eagle3_tensors(lm_head=False)
    assert tensors.keys() == whole.keys() | {"d2t"}
    assert {tensor.dtype for key, tensor in tensors.items() if key != "d2t"} == {torch.float16}
    assert json.loads((tmp_path / "config.json").read_text())["spec_trt_training"] == {"tokens": 5}


@pytest.mark.parametrize("draft_ids", [None, DRAFT_IDS])
def test_standalone_eagle_is_the_public_form(tmp_path, target, ids, features, draft_ids):
    draft = random_draft(target, version=1, draft_ids=draft_ids, fc_bias=True)
    save_eagle(draft, tmp_path, draft_ids=draft_ids, standalone=True, dtype=torch.float32)
    tensors = load_file(tmp_path / "model.safetensors")
    assert tensors.keys() == write_eagle(tmp_path / "other").keys()
    whole = target.projection.weight
    expected = reference.eagle(
        tensors,
        embedding(ids, tensors["embed_tokens.weight"]),
        features[0],
        whole,
        THETA,
        eps=draft.config.rms_norm_eps,
    )
    loaded = load_eagle(tmp_path, target)
    assert loaded.draft_ids is None
    close(run(loaded.draft, ids, features[:1]), expected)
    settings = json.loads((tmp_path / "config.json").read_text())
    assert settings["bias"] is True
    assert "draft_vocab_size" not in settings


@pytest.mark.parametrize("draft_ids", [None, DRAFT_IDS])
def test_standalone_eagle3_is_the_public_form(tmp_path, target, ids, features, draft_ids):
    draft = random_draft(target, version=3, draft_ids=draft_ids)
    save_eagle(draft, tmp_path, draft_ids=draft_ids, standalone=True, dtype=torch.float32)
    tensors = load_file(tmp_path / "model.safetensors")
    assert tensors.keys() == eagle3_tensors(embedding=True).keys() | (maps(DRAFT_IDS).keys() if draft_ids else set())
    if draft_ids:
        assert torch.equal(tensors["d2t"], offsets(DRAFT_IDS))
        assert torch.equal(tensors["t2d"], maps(DRAFT_IDS)["t2d"])
    settings = json.loads((tmp_path / "config.json").read_text())
    assert settings["architectures"] == ["LlamaForCausalLMEagle3"]
    assert settings["draft_vocab_size"] == len(draft_ids or range(VOCAB))
    loaded = load_eagle(tmp_path, target)
    assert loaded.draft_ids == draft_ids
    close(run(loaded.draft, ids, features[:3]), run(draft, ids, features[:3]))


def test_what_the_public_forms_cannot_express_is_refused(tmp_path, target):
    with pytest.raises(ConfigError, match="has no lm_head of its own, this one has: write the slim form"):
        save_eagle(random_draft(target, version=1, own=True), tmp_path, draft_ids=None, standalone=True)
    phi = replace(make_target("phi"), rope_parameters=target.rope_parameters)
    with pytest.raises(ConfigError, match="has no bias, the target's lm_head has: write the slim form"):
        save_eagle(random_draft(phi, version=3), tmp_path, draft_ids=None, standalone=True)
    assert list(tmp_path.iterdir()) == []
