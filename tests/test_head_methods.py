"""Methods with draft heads on real graphs: random heads are seldom right, exact ones always, outputs are plain's."""

import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM

from spec_trt.builder.build import build_engine
from spec_trt.builder.config import BuildConfig
from spec_trt.errors import ManifestError
from spec_trt.export.bundle import export_bundle
from spec_trt.export.config import ExportConfig
from spec_trt.heads.eagle import EagleConfig, EagleDraft
from spec_trt.heads.eagle_checkpoint import save_eagle
from spec_trt.heads.medusa import MedusaConfig, MedusaHeads
from spec_trt.heads.medusa_checkpoint import save_medusa
from spec_trt.heads.target import head_target
from spec_trt.runtime.drafters.eagle2 import Eagle2Options
from spec_trt.runtime.engine import Engine
from spec_trt.runtime.generation import GenerationConfig
from tests.families import make_model, save_model

PROMPTS = [[65], [70, 71, 72, 70, 71], [3 + token * token % 117 for token in range(150)]]  # one, few, several chunks
HEAD_METHODS = [
    ("medusa", {}),
    ("eagle", {}),
    ("eagle2", {}),
    ("eagle2", {"depth": 2, "top_k": 3, "total_tokens": 7, "node_probability": 0, "level_probability": 0}),
]


def load(bundle, tmp_path_factory):
    engine = tmp_path_factory.mktemp("engine") / "engine"
    build_engine(BuildConfig(bundle=bundle, out=engine))
    return Engine.load(engine, threads=1)


@pytest.fixture(scope="module")
def engine(medusa_bundle, tmp_path_factory):
    return load(medusa_bundle, tmp_path_factory)


@pytest.fixture(scope="module")
def eagle3_engine(eagle3_bundle, tmp_path_factory):
    return load(eagle3_bundle, tmp_path_factory)


def generate(engine, prompt, method="autoregressive", options=None, count=40):
    config = GenerationConfig(method=method, options=options or {}, max_new_tokens=count, ignore_eos=True)
    return engine.generate(prompt, config)


@pytest.mark.parametrize(("method", "options"), HEAD_METHODS)
def test_random_heads_change_nothing(engine, method, options):
    for prompt in PROMPTS:
        assert generate(engine, prompt, method, options).token_ids == generate(engine, prompt).token_ids


@pytest.mark.parametrize(("method", "options"), HEAD_METHODS[1:])
def test_a_random_eagle3_head_changes_nothing(eagle3_engine, method, options):
    assert "medusa" not in eagle3_engine.methods
    for prompt in PROMPTS:
        assert generate(eagle3_engine, prompt, method, options).token_ids == generate(eagle3_engine, prompt).token_ids


@pytest.mark.parametrize("method", ["medusa", "eagle", "eagle2"])
def test_drafts_stay_inside_the_context(engine, method):
    prompt = PROMPTS[2]
    room = engine.manifest.model.max_positions - len(prompt)
    result = generate(engine, prompt, method, count=1000)
    assert len(result.token_ids) == room
    assert result.finish_reason == "length"


def test_a_head_without_its_graph_is_refused(engine, tmp_path):
    copy = tmp_path / "engine"
    shutil.copytree(engine.directory, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    del manifest["graphs"]["eagle"]
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ManifestError, match="names a draft head but no graph 'eagle': export and build it again"):
        Engine.load(copy)


@pytest.fixture(scope="module")
def exact_engine(tmp_path_factory):
    """A target whose next token is a function of its last one, and heads that are that function."""
    root = tmp_path_factory.mktemp("exact")
    model = cycling_model()
    save_model(model, root / "model")
    for name in ("medusa", "eagle"):
        (root / name).mkdir()
    target = head_target(AutoModelForCausalLM.from_pretrained(root / "model"))
    save_medusa(exact_medusa(target), root / "medusa", draft_ids=None, standalone=False)
    save_eagle(exact_eagle(target), root / "eagle", draft_ids=None, standalone=False)
    export_bundle(
        ExportConfig(
            model=str(root / "model"),
            output=root / "bundle",
            medusa=root / "medusa",
            eagle=root / "eagle",
            check=False,
        )
    )
    return load(root / "bundle", tmp_path_factory)


def cycling_model():
    """A llama whose layers add nothing: token t is followed by 5t + 3 modulo 32, through all ids."""
    model = make_model("llama", vocab_size=32, num_hidden_layers=1, tie_word_embeddings=False)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.norm.weight.fill_(1)
        model.model.embed_tokens.weight.copy_(torch.eye(32))
        model.lm_head.weight.zero_()
        for token in range(32):
            model.lm_head.weight[follower(token), token] = 1
    return model


def follower(token, times=1):
    for _ in range(times):
        token = (5 * token + 3) % 32
    return token


def exact_medusa(target):
    config = MedusaConfig(hidden=32, heads=3, layers=1, draft_vocab=32, shared_projection=True)
    heads = MedusaHeads(config, [target.projection])
    weights = dict(heads.named_parameters())
    with torch.no_grad():
        for head in range(3):
            for token in range(32):
                weights[f"heads.{head}.0.linear.weight"][follower(token, head + 1), token] = 9
    return heads


def exact_eagle(target):
    config = EagleConfig(
        version=1,
        hidden=32,
        intermediate=16,
        heads=4,
        kv_heads=2,
        head_dim=8,
        target_hidden=32,
        draft_vocab=32,
        rope_parameters=target.rope_parameters,
        max_positions=target.max_positions,
    )
    draft = EagleDraft(config, target.embedding, target.projection)
    weights = dict(draft.named_parameters())
    with torch.no_grad():
        weights["fc.weight"].copy_(torch.cat([30 * torch.eye(32), torch.zeros(32, 32)], dim=1))
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            weights[f"layers.0.{name}.weight"].zero_()
    return draft


@pytest.mark.parametrize("method", ["medusa", "eagle", "eagle2"])
def test_exact_heads_are_accepted_to_the_trees_depth(exact_engine, method):
    heads = exact_engine.manifest.heads
    depth = {
        "medusa": max(map(len, heads.medusa.tree)),
        "eagle": max(map(len, heads.eagle.tree)),
        "eagle2": Eagle2Options().depth + 1,
    }[method]
    result = generate(exact_engine, [1, follower(1)], method, count=5 * (depth + 1))
    assert result.token_ids == [follower(1, 1 + number) for number in range(1, 5 * (depth + 1) + 1)]
    assert result.stats.accept_length == depth + 1
