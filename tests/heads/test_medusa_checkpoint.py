import json
import re
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from spec_trt.errors import ConfigError, ModelError
from spec_trt.heads.medusa import MedusaConfig, MedusaHeads
from spec_trt.heads.medusa_checkpoint import (
    check_standalone_medusa,
    is_medusa_key,
    load_medusa,
    medusa_model_tensors,
    save_medusa,
)
from spec_trt.heads.target import head_target
from tests.families import VOCAB, make_model, save_model
from tests.heads import reference
from tests.heads.checkpoints import (
    DRAFT_IDS,
    HIDDEN,
    add_medusa_heads,
    make_target,
    medusa_tensors,
    write,
    write_eagle,
    write_medusa_modelopt,
    write_medusa_v1,
    write_medusa_v2,
    write_shards,
)


@pytest.fixture
def target():
    return make_target()


@pytest.fixture(scope="module")
def states():
    return torch.randn(2, 5, HIDDEN, generator=torch.Generator().manual_seed(3))


def check(loaded, tensors, states, lm_head, **options):
    expected = reference.medusa(tensors, states, lm_head, **options)
    assert loaded.heads(states).shape == expected.shape
    torch.testing.assert_close(loaded.heads(states), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("file", ["medusa_lm_head.pt", "medusa_lm_head.safetensors", "other-name.bin"])
def test_v1_has_projections_of_its_own_and_its_heads_are_counted(tmp_path, target, states, file):
    tensors = write_medusa_v1(tmp_path / "vicuna-heads", heads=5, file=file)
    loaded = load_medusa(tmp_path / "vicuna-heads", target)
    assert (loaded.heads.config.heads, loaded.source, loaded.draft_ids) == (5, "vicuna-heads", None)
    check(loaded, tensors, states, target.projection.weight)


def test_blocks_are_counted_too(tmp_path, target, states):
    tensors = write_medusa_v1(tmp_path, heads=2, layers=3)
    check(load_medusa(tmp_path, target), tensors, states, target.projection.weight, layers=3)


def test_v2_uses_the_targets_lm_head(tmp_path, target, states):
    tensors = write_medusa_v2(tmp_path, layers=2)
    loaded = load_medusa(tmp_path, target)
    check(loaded, tensors, states, target.projection.weight, layers=2)
    assert loaded.heads.projections[0].get_buffer("weight").data_ptr() == target.projection.weight.data_ptr()


def test_version_in_the_config_decides_nothing(tmp_path, target, states):
    tensors = write_medusa_v1(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"version": "2", "medusa_num_heads": 99}))
    check(load_medusa(tmp_path, target), tensors, states, target.projection.weight)


def test_a_file_without_a_config_is_enough(tmp_path, target, states):
    tensors = write_medusa_v1(tmp_path)
    (tmp_path / "config.json").unlink()
    loaded = load_medusa(tmp_path / "medusa_lm_head.pt", target)
    assert loaded.source == "medusa_lm_head.pt"
    check(loaded, tensors, states, target.projection.weight)


@pytest.mark.parametrize("shards", [None, "safetensors", "bin"])
def test_heads_among_a_whole_models_weights(tmp_path, states, shards):
    model = make_model("llama", num_hidden_layers=1)
    directory = save_model(model, tmp_path / "whole")
    base_keys = set(load_file(directory / "model.safetensors"))
    tensors = add_medusa_heads(directory)
    if shards:
        whole = load_file(directory / "model.safetensors")
        directory = write_shards(tmp_path / "sharded", whole, {}, ending=shards)
    assert all(map(is_medusa_key, tensors))
    assert not any(map(is_medusa_key, base_keys))
    target = head_target(model)
    check(load_medusa(directory, target), tensors, states, target.projection.weight, prefix="medusa_head.")


def test_an_ordinary_model_has_no_heads(tmp_path, target):
    directory = save_model(make_model("llama", num_hidden_layers=1), tmp_path / "plain")
    with pytest.raises(ModelError, match=r"plain holds no Medusa heads: expected keys such as 0\.0\.linear\.weight"):
        load_medusa(directory, target)


def test_modelopt(tmp_path, target, states):
    tensors = write_medusa_modelopt(tmp_path, layers=2)
    options = {"prefix": "medusa_heads.", "layers": 2}
    check(load_medusa(tmp_path, target), tensors, states, target.projection.weight, **options)


def test_a_reduced_vocabulary_takes_the_targets_rows(tmp_path, target, states):
    tensors = write_medusa_v2(tmp_path, draft_ids=DRAFT_IDS)
    loaded = load_medusa(tmp_path, target)
    assert loaded.draft_ids == DRAFT_IDS
    check(loaded, tensors, states, target.projection.weight[DRAFT_IDS])


@pytest.mark.parametrize("family", ["phi", "gemma2", "granite", "cohere"])
def test_what_a_family_does_behind_its_lm_head_carries_over(tmp_path, states, family):
    target = make_target(family, tie_word_embeddings=family != "phi")
    tensors = write_medusa_v2(tmp_path, heads=1)
    linear = reference.medusa(tensors, states, target.projection.weight)
    if family == "phi":
        assert target.projection.bias is not None
        linear = linear + target.projection.bias
    expected = {
        "phi": lambda: linear,
        "gemma2": lambda: 5.0 * torch.tanh(linear / 5.0),
        "granite": lambda: linear / 3.0,
        "cohere": lambda: linear * 0.5,
    }[family]()
    torch.testing.assert_close(load_medusa(tmp_path, target).heads(states), expected, atol=1e-5, rtol=1e-5)


def test_heads_get_the_targets_data_type(tmp_path):
    write_medusa_v1(tmp_path)
    target = head_target(make_model("llama", num_hidden_layers=1).to(torch.bfloat16))
    heads = load_medusa(tmp_path, target).heads
    assert {tensor.dtype for tensor in heads.state_dict().values()} == {torch.bfloat16}
    assert not any(parameter.requires_grad for parameter in heads.parameters())


def test_every_fault_is_named_in_one_line(tmp_path, target):
    tensors = medusa_tensors(heads=3)
    del tensors["1.0.linear.bias"], tensors["2.1.weight"]
    tensors["0.0.linear.weight"] = torch.zeros(HIDDEN, 2)
    tensors["0.1.weight"] = torch.zeros(VOCAB, HIDDEN, dtype=torch.int8)
    tensors["extra.weight"] = torch.zeros(1)
    write(tmp_path / "bad", tensors, {})
    with pytest.raises(ModelError) as caught:
        load_medusa(tmp_path / "bad", target)
    assert str(caught.value) == (
        "bad is no Medusa head that fits the target and its config: 2 missing (1.0.linear.bias, 2.1.weight); "
        "1 unknown (extra.weight); 1 of another shape (0.0.linear.weight [32, 2] instead of [32, 32]); "
        "1 not of floating point (0.1.weight torch.int8)"
    )


def test_a_gap_between_heads_is_named(tmp_path, target):
    tensors = {key: tensor for key, tensor in medusa_tensors(own=False).items() if not key.startswith("1.")}
    write(tmp_path, tensors, {})
    missing = re.escape(
        "2 missing (1.0.linear.bias, 1.0.linear.weight); 2 unknown (2.0.linear.bias, 2.0.linear.weight)"
    )
    with pytest.raises(ModelError, match=missing):
        load_medusa(tmp_path, target)


def test_another_models_heads_are_refused(tmp_path, target):
    write_medusa_v2(tmp_path)
    narrow = replace(target, projection=target.projection.with_weight(torch.zeros(VOCAB, 24)))
    with pytest.raises(ModelError, match=r"6 of another shape .*\[32, 32\] instead of \[24, 24\]"):
        load_medusa(tmp_path, narrow)


def test_a_reduced_vocabulary_without_its_ids_is_refused(tmp_path, target):
    write(tmp_path, medusa_tensors(own=False), {"draft_vocab_size": 12})
    with pytest.raises(ModelError, match=r"1 missing \(d2t\)"):
        load_medusa(tmp_path, target)


def test_an_eagle_head_is_no_medusa_head(tmp_path, target):
    write_eagle(tmp_path)
    with pytest.raises(ModelError, match=r"holds no Medusa heads: .*found embed_tokens\.weight, fc\.bias"):
        load_medusa(tmp_path, target)


def test_the_tree_comes_along(tmp_path, target):
    tensors = medusa_tensors()
    write(tmp_path, tensors, {"medusa_choices": [[0, 1], [1], [0], [0, 1, 9]]})
    loaded = load_medusa(tmp_path, target)
    assert loaded.tree == [[0], [1], [0, 1], [0, 1, 9]]
    assert loaded.notes == []


@pytest.mark.parametrize("tree", [[[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]], [[0, 1]], [[10]], [[0], [0]], "mc_sim", [[]]])
def test_a_tree_of_no_use_is_left_out_and_said(tmp_path, target, tree):
    write(tmp_path, medusa_tensors(), {"medusa_choices": tree})
    loaded = load_medusa(tmp_path, target)
    assert loaded.tree is None
    assert loaded.notes == ["ignored its tree: expected paths of ranks below 10 with every prefix among them"]


def random_heads(target, *, layers=2, draft_ids=None, own=False):
    base = target.projection if draft_ids is None else target.projection.narrowed(draft_ids)
    config = MedusaConfig(
        hidden=HIDDEN, heads=3, layers=layers, draft_vocab=len(base.weight), shared_projection=not own
    )
    generator = torch.Generator().manual_seed(9)
    rows = [base.with_weight(torch.randn(base.weight.shape, generator=generator)) for _ in range(3)]
    heads = MedusaHeads(config, rows if own else [base])
    for parameter in heads.heads.parameters():
        torch.nn.init.normal_(parameter, std=0.2, generator=generator)
    return heads


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("draft_ids", [None, DRAFT_IDS])
def test_saved_heads_load_as_they_were(tmp_path, target, states, own, draft_ids):
    heads = random_heads(target, draft_ids=draft_ids, own=own)
    tree = [[0], [1], [0, 0]]
    save_medusa(heads, tmp_path, draft_ids=draft_ids, standalone=False, tree=tree, dtype=torch.float32)
    loaded = load_medusa(tmp_path, target)
    assert (loaded.draft_ids, loaded.tree, loaded.heads.config) == (draft_ids, tree, heads.config)
    torch.testing.assert_close(loaded.heads(states), heads(states))


def test_a_trained_projection_that_heads_share_is_kept(tmp_path, target, states):
    own = target.projection.with_weight(torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(2)))
    config = MedusaConfig(hidden=HIDDEN, heads=2, layers=1, draft_vocab=VOCAB, shared_projection=True)
    heads = MedusaHeads(config, [own])
    save_medusa(heads, tmp_path, draft_ids=None, standalone=False, dtype=torch.float32)
    torch.testing.assert_close(load_medusa(tmp_path, target).heads(states), heads(states))


def test_the_slim_form_is_half_precision_and_holds_nothing_of_the_target(tmp_path, target):
    save_medusa(random_heads(target), tmp_path, draft_ids=None, standalone=False, card={"tokens": 5}, base="tiny")
    tensors = load_file(tmp_path / "medusa_lm_head.safetensors")
    assert tensors.keys() == medusa_tensors(layers=2, own=False).keys()
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float16}
    assert json.loads((tmp_path / "config.json").read_text()) == {
        "version": "2",
        "medusa_num_heads": 3,
        "medusa_num_layers": 2,
        "hidden_size": HIDDEN,
        "base_model_name_or_path": "tiny",
        "spec_trt_training": {"tokens": 5},
    }


def test_the_standalone_form_is_v1(tmp_path, target, states):
    heads = random_heads(target)
    save_medusa(heads, tmp_path, draft_ids=None, standalone=True, dtype=torch.float32)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["config.json", "medusa_lm_head.pt"]
    tensors = torch.load(tmp_path / "medusa_lm_head.pt", weights_only=True)
    assert tensors.keys() == medusa_tensors(layers=2).keys()
    torch.testing.assert_close(
        reference.medusa(tensors, states, target.projection.weight, layers=2), heads(states), atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(load_medusa(tmp_path, target).heads(states), heads(states))


@pytest.mark.parametrize("draft_ids", [None, DRAFT_IDS])
def test_heads_written_among_their_models_weights(tmp_path, states, draft_ids):
    model = make_model("llama", num_hidden_layers=1)
    target = head_target(model)
    heads = random_heads(target, draft_ids=draft_ids)
    tensors = medusa_model_tensors(heads, draft_ids, torch.float32)
    model.save_pretrained(tmp_path, state_dict=model.state_dict() | tensors)
    assert all(map(is_medusa_key, tensors))
    loaded = load_medusa(tmp_path, target)
    assert loaded.draft_ids == draft_ids
    torch.testing.assert_close(loaded.heads(states), heads(states))


def test_what_v1_cannot_express_is_refused(tmp_path, target):
    heads = random_heads(target, draft_ids=DRAFT_IDS)
    with pytest.raises(ConfigError, match="whole vocabulary, these have 12 ids of it: train without a draft vocab"):
        save_medusa(heads, tmp_path, draft_ids=DRAFT_IDS, standalone=True)
    phi = make_target("phi", tie_word_embeddings=False)
    with pytest.raises(ConfigError, match="have no bias, the target's lm_head has: write the slim form"):
        check_standalone_medusa(random_heads(phi), None)
    assert list(tmp_path.iterdir()) == []


def test_weights_that_are_not_finite_are_not_written(tmp_path, target):
    heads = random_heads(target)
    torch.nn.init.constant_(heads.get_parameter("heads.1.0.linear.bias"), 1e6)
    with pytest.raises(ModelError, match=r"not finite as torch\.float16: 1\.0\.linear\.bias"):
        save_medusa(heads, tmp_path, draft_ids=None, standalone=False)
    assert list(tmp_path.iterdir()) == []
