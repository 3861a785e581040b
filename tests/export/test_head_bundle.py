"""Draft heads in a bundle: what is written, what is said of it, and what is refused."""

import shutil
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
from click.testing import CliRunner

from spec_trt.cli.export import command
from spec_trt.errors import ConfigError, ModelError
from spec_trt.export.bundle import Exported, export_bundle
from spec_trt.export.config import STEPS, ExportConfig
from spec_trt.export.heads import load_heads
from spec_trt.export.load import load_model
from spec_trt.export.source import locate
from spec_trt.manifest import TensorFacts, load_manifest
from tests.conftest import FamilyPath
from tests.families import VOCAB, make_model, save_model
from tests.heads.checkpoints import (
    DRAFT_IDS,
    HIDDEN,
    add_medusa_heads,
    write_eagle,
    write_eagle3,
    write_medusa_v2,
    write_speculators,
)
from tests.tokenizers import save_tokenizer


def export(model: Path, output: Path, **options: Any) -> Exported:
    return export_bundle(ExportConfig(model=str(model), output=output, **options))


def facts(name: str, dtype: str, *shape: int | str) -> TensorFacts:
    return TensorFacts(name=name, dtype=dtype, shape=list(shape))


def test_the_interface_is_the_designs(medusa_bundle: Path):
    graphs = load_manifest(medusa_bundle, verify=True).graphs
    assert list(graphs) == ["base", "medusa", "eagle"]
    medusa, eagle = graphs["medusa"], graphs["eagle"]

    assert (medusa.file, eagle.file) == ("medusa.onnx", "eagle.onnx")
    assert medusa.inputs == [facts("hidden_states", "float32", "batch", "rows", HIDDEN)]
    assert medusa.outputs == [
        facts("token_ids", "int64", "batch", "rows", 4, 10),
        facts("log_probs", "float32", "batch", "rows", 4, 10),
    ]
    assert eagle.inputs == [
        facts("input_ids", "int64", "batch", "nodes"),
        facts("position_ids", "int64", "batch", "nodes"),
        facts("features", "float32", "batch", "nodes", HIDDEN),
        facts("past_lens", "int64", "batch"),
        facts("tree_mask", "bool", "batch", "nodes", "window"),
        facts("past_key.0", "float32", "batch", 2, "past", 16),
        facts("past_value.0", "float32", "batch", 2, "past", 16),
    ]
    assert eagle.outputs == [
        facts("token_ids", "int64", "batch", "nodes", 10),
        facts("log_probs", "float32", "batch", "nodes", 10),
        facts("next_features", "float32", "batch", "nodes", HIDDEN),
        facts("draft_logits", "float32", "batch", "nodes", VOCAB),
        facts("new_key.0", "float32", "batch", 2, "nodes", 16),
        facts("new_value.0", "float32", "batch", 2, "nodes", 16),
    ]


def test_an_eagle3_bundle_has_the_features_and_their_fusion(eagle3_bundle: Path):
    manifest = load_manifest(eagle3_bundle, verify=True)
    assert list(manifest.graphs) == ["base", "eagle", "eagle_fuse"]
    base = [tensor.name for tensor in manifest.graphs["base"].outputs]
    assert base[2:6] == ["hidden_states", "features.0", "features.1", "features.2"]
    assert manifest.graphs["eagle_fuse"].inputs == [facts("features", "float32", "batch", "nodes", 3 * HIDDEN)]
    assert manifest.graphs["eagle_fuse"].outputs == [facts("next_features", "float32", "batch", "nodes", HIDDEN)]


def test_the_manifest_describes_the_heads(medusa_bundle: Path, eagle3_bundle: Path):
    heads = load_manifest(medusa_bundle).heads
    assert heads.medusa is not None
    assert (heads.medusa.heads, heads.medusa.layers, heads.medusa.top_k) == (4, 1, 10)
    assert (heads.medusa.draft_vocab, heads.medusa.draft_ids, heads.medusa.source) == (VOCAB, None, "medusa")
    assert heads.eagle is not None
    assert (heads.eagle.version, heads.eagle.feature_layers, heads.eagle.draft_ids) == (1, [], None)

    eagle = load_manifest(eagle3_bundle).heads.eagle
    assert eagle is not None
    assert (eagle.version, eagle.layers, eagle.kv_heads, eagle.head_dim, eagle.hidden) == (3, 1, 2, 16, HIDDEN)
    assert (eagle.feature_layers, eagle.draft_vocab, eagle.draft_ids) == ([2, 3, 4], len(DRAFT_IDS), DRAFT_IDS)


@pytest.mark.parametrize("key", ["medusa", "eagle"])
def test_names_are_tidy_and_no_path_of_this_machine_is_kept(key: str, medusa_bundle: Path):
    content = (medusa_bundle / f"{key}.onnx").read_bytes()
    assert str(Path(ir.__file__).parents[1]).encode() not in content
    assert str(medusa_bundle.parent).encode() not in content
    model = ir.load(medusa_bundle / f"{key}.onnx")
    values = [*model.graph.initializers, *(value.name for node in model.graph for value in node.outputs)]
    assert len(set(values)) == len(values)
    expected = {"medusa": "heads.3.0.linear.weight_t", "eagle": "layers.0.self_attn.q_proj.weight_t"}[key]
    assert expected in model.graph.initializers
    assert list(model.functions) == ([("spec_trt", "TreeAttention", "")] if key == "eagle" else [])


def test_half_precision_with_every_kind_of_graph(family_model: FamilyPath, tmp_path: Path):
    write_medusa_v2(tmp_path / "medusa", draft_ids=DRAFT_IDS)
    tree = [[0], [1], [0, 0]]
    write_speculators(tmp_path / "eagle", features=2, eagle_aux_hidden_state_layer_ids=[0, 1], tree=tree)
    exported = export(
        family_model("llama"), tmp_path / "bundle", medusa=tmp_path / "medusa", eagle=tmp_path / "eagle", dtype="bf16"
    )

    assert exported.parity is not None
    assert exported.parity.passes == 5 + 2 + 5 + 2
    graphs, heads = exported.manifest.graphs, exported.manifest.heads
    kinds = {tensor.name: tensor.dtype for tensor in (*graphs["eagle"].inputs, *graphs["eagle"].outputs)}
    assert kinds["features"] == kinds["past_key.0"] == kinds["new_value.0"] == kinds["next_features"] == "bfloat16"
    assert kinds["log_probs"] == "float32"
    assert heads.eagle is not None
    assert (heads.eagle.tree, heads.eagle.feature_layers) == (tree, [0, 1])
    assert [tensor.name for tensor in graphs["base"].outputs[3:5]] == ["features.0", "features.1"]
    frequencies = ir.load(tmp_path / "bundle" / "eagle.onnx").graph.initializers["rotary.inv_freq"]
    assert frequencies.dtype == ir.DataType.FLOAT


def test_a_medusa2_directory_gives_base_and_heads(family_model: FamilyPath, tmp_path: Path):
    model = Path(shutil.copytree(family_model("llama"), tmp_path / "model"))
    add_medusa_heads(model, heads=2)
    exported = export(model, tmp_path / "bundle")
    assert exported.manifest.heads.medusa is not None
    assert (exported.manifest.heads.medusa.heads, exported.manifest.heads.medusa.source) == (2, "model")

    write_medusa_v2(tmp_path / "heads", heads=3)
    config = ExportConfig(model=str(model), output=tmp_path / "other", medusa=tmp_path / "heads")
    given = load_heads(config, load_model(locate(str(model)), "fp32")).medusa
    assert given is not None
    assert (given.heads.config.heads, given.source) == (3, "heads")


def test_the_vocabulary_of_heads_is_reduced_by_a_text(tmp_path: Path):
    model = save_tokenizer(save_model(make_model("llama"), tmp_path / "model"))
    write_medusa_v2(tmp_path / "medusa")
    write_eagle(tmp_path / "eagle")
    (tmp_path / "text.txt").write_text("abc abc abc def zz q\n")
    result = CliRunner().invoke(
        command,
        [
            *(str(model), str(tmp_path / "bundle"), "--medusa", str(tmp_path / "medusa")),
            *("--eagle", str(tmp_path / "eagle")),
            *("--draft-vocab", "12", "--draft-vocab-data", str(tmp_path / "text.txt")),
        ],
    )

    assert result.exit_code == 0, result.exception
    assert "draft vocabulary: 12 of 300 ids cover 100.00% of the tokens in " in result.stdout
    assert all(step in result.stderr for step in STEPS)
    manifest = load_manifest(tmp_path / "bundle")
    medusa, eagle = manifest.heads.medusa, manifest.heads.eagle
    assert medusa is not None
    assert eagle is not None
    assert medusa.draft_ids == eagle.draft_ids
    assert (medusa.draft_vocab, eagle.draft_vocab) == (12, 12)
    assert set(manifest.model.eos_ids) <= set(eagle.draft_ids or [])
    assert next(tensor.shape[-1] for tensor in manifest.graphs["eagle"].outputs if tensor.name == "draft_logits") == 12


def test_a_reduced_vocabulary_can_not_be_reduced_again(deep_model: Path, tmp_path: Path):
    write_eagle3(tmp_path / "draft")
    (tmp_path / "text.txt").write_text("abc")
    with pytest.raises(ConfigError, match=r"needs heads with the whole vocabulary, but draft has 12 ids of its own"):
        export(
            deep_model,
            tmp_path / "bundle",
            eagle=tmp_path / "draft",
            draft_vocab=11,
            draft_vocab_data=tmp_path / "text.txt",
        )
    assert not (tmp_path / "bundle").exists()


def test_a_reduced_vocabulary_needs_heads_and_a_tokenizer(family_model: FamilyPath, tmp_path: Path):
    write_medusa_v2(tmp_path / "heads")
    (tmp_path / "text.txt").write_text("abc")
    asked = {"draft_vocab": 20, "draft_vocab_data": tmp_path / "text.txt"}
    with pytest.raises(ConfigError, match="there are none: add --medusa or --eagle"):
        export(family_model("llama"), tmp_path / "bundle", **asked)
    with pytest.raises(ConfigError, match="the model has no tokenizer files"):
        export(family_model("llama"), tmp_path / "bundle", medusa=tmp_path / "heads", **asked)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"draft_vocab": 20}, "go together"),
        ({"draft_vocab_data": Path("text.txt")}, "go together"),
        ({"draft_vocab": 0, "draft_vocab_data": Path("text.txt")}, "at least one id, found --draft-vocab 0"),
    ],
)
def test_half_of_a_draft_vocabulary_is_refused(options: dict[str, Any], reason: str):
    with pytest.raises(ConfigError, match=reason):
        ExportConfig(model="x", output=Path("y"), **options)


@pytest.mark.parametrize("option", ["medusa", "eagle", "draft_vocab_data"])
def test_what_does_not_exist_is_told_before_anything_is_loaded(option: str, tmp_path: Path):
    options = {option: tmp_path / "none"} | ({"draft_vocab": 9} if option == "draft_vocab_data" else {})
    with pytest.raises(ConfigError, match=rf"none does not exist: give --{option.replace('_', '-')} another path"):
        export(Path("/no/such/model"), tmp_path / "bundle", **options)


def refuse(model: Path, tmp_path: Path, reason: str, **options: Any) -> None:
    """An export fails in one line, before anything is traced, and leaves nothing."""
    steps: list[str] = []
    config = ExportConfig(model=str(model), output=tmp_path / "out" / "bundle", **options)
    with pytest.raises(ModelError, match=reason) as caught:
        export_bundle(config, steps.append)
    assert "\n" not in str(caught.value)
    assert steps == ["load"]
    assert list((tmp_path / "out").iterdir()) == []


def test_heads_of_another_model_are_refused(family_model: FamilyPath, deep_model: Path, tmp_path: Path):
    narrow = save_model(make_model("llama", hidden_size=16, head_dim=8), tmp_path / "narrow")
    other = save_model(make_model("llama", vocab_size=280, num_hidden_layers=7), tmp_path / "other")
    write_medusa_v2(tmp_path / "medusa")
    write_eagle(tmp_path / "eagle")
    write_eagle3(tmp_path / "eagle3")
    refuse(narrow, tmp_path, "medusa is no Medusa head that fits the target", medusa=tmp_path / "medusa")
    refuse(narrow, tmp_path, "an EAGLE head is as wide as its target", eagle=tmp_path / "eagle")
    refuse(other, tmp_path, "embed_tokens.weight", eagle=tmp_path / "eagle")
    refuse(other, tmp_path, r"t2d \[300\] instead of \[280\]", eagle=tmp_path / "eagle3")
    refuse(family_model("llama"), tmp_path, "the target has 2 layers", eagle=tmp_path / "eagle3")
    refuse(deep_model, tmp_path, "eagle holds no Medusa heads", medusa=tmp_path / "eagle")
    refuse(deep_model, tmp_path, "medusa holds no EAGLE head", eagle=tmp_path / "medusa")
