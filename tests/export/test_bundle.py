"""What a bundle holds, and that one appears whole or not at all."""

import errno
import importlib.util
import json
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import onnx_ir as ir
import pytest
import torch
import transformers
from transformers import AutoTokenizer

import spec_trt
from spec_trt import names
from spec_trt.errors import BackendError, ConfigError, ExportError, ModelError, SpecTrtError
from spec_trt.export import bundle, parity
from spec_trt.export.bundle import Exported, export_bundle
from spec_trt.export.config import STEPS, Dtype, ExportConfig
from spec_trt.manifest import TensorFacts, load_manifest
from tests.conftest import FamilyPath
from tests.export.greedy import GreedyLoop
from tests.export.test_families import COUNT, PROMPT, generate
from tests.families import FAMILIES, VOCAB, make_model, save_model
from tests.tokenizers import save_tokenizer


def export(model: Path, output: Path, **options) -> Exported:
    return export_bundle(ExportConfig(model=str(model), output=output, **options))


def facts(name: str, dtype: str, *shape: int | str) -> TensorFacts:
    return TensorFacts(name=name, dtype=dtype, shape=list(shape))


def test_the_interface_is_the_designs(family_bundle: FamilyPath):
    graph = load_manifest(family_bundle("llama")).graphs["base"]
    buffer, new = ("batch", 2, "past", 8), ("batch", 2, "nodes", 8)
    layers = range(2)

    assert graph.inputs == [
        facts("input_ids", "int64", "batch", "nodes"),
        facts("position_ids", "int64", "batch", "nodes"),
        facts("past_lens", "int64", "batch"),
        facts("tree_mask", "bool", "batch", "nodes", "window"),
        facts("logits_rows", "int64", "batch", "rows"),
        *(facts(f"{name}.{layer}", "float32", *buffer) for layer in layers for name in ("past_key", "past_value")),
    ]
    assert graph.outputs == [
        facts("logits", "float32", "batch", "rows", VOCAB),
        facts("argmax", "int64", "batch", "rows"),
        facts("hidden_states", "float32", "batch", "nodes", 32),
        *(facts(f"{name}.{layer}", "float32", *new) for layer in layers for name in ("new_key", "new_value")),
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_file_agrees_with_its_manifest(family: str, family_bundle: FamilyPath):
    directory = family_bundle(family)
    model, graph = ir.load(directory / "base.onnx"), load_manifest(directory).graphs["base"]
    assert [value.name for value in model.graph.inputs] == [item.name for item in graph.inputs]
    assert [value.name for value in model.graph.outputs] == [item.name for item in graph.outputs]
    assert [dim for item in graph.outputs for dim in item.shape if str(dim).startswith("s")] == []
    assert sum(node.op_type == names.OP_NAME for node in model.graph) == 2


def test_the_manifest_says_where_the_model_is_from(family_bundle: FamilyPath):
    directory = family_bundle("llama")
    source = load_manifest(directory, verify=True).source
    assert (source.model, source.revision) == ("llama", None)
    assert source.exporter_version == spec_trt.__version__
    assert source.torch_version == torch.__version__
    assert source.transformers_version == transformers.__version__


def test_no_path_of_this_machine_is_kept(family_model: FamilyPath, family_bundle: FamilyPath):
    directory = family_bundle("llama")
    traces = [str(family_model("llama").parent), str(directory.parent), str(Path(spec_trt.__file__).parent)]
    for file in ("manifest.json", "base.onnx"):
        content = (directory / file).read_bytes()
        assert not [trace for trace in traces if trace.encode() in content]


def test_weights_and_nodes_are_named_after_their_modules(family_bundle: FamilyPath):
    graph = ir.load(family_bundle("llama") / "base.onnx").graph
    assert "model.layers.1.self_attn.q_proj.weight_t" in graph.initializers
    assert "model.layers.0.input_layernorm.weight" in graph.initializers
    assert any(str(node.name).startswith("model.layers.1.mlp.up_proj/MatMul") for node in graph)
    assert not any(node.metadata_props for node in graph)


def test_tied_embeddings_are_stored_once(tmp_path: Path, family_bundle: FamilyPath):
    tied, cells = family_bundle("llama"), VOCAB * 32
    weights = ir.load(tied / "base.onnx").graph.initializers
    assert [name for name, weight in weights.items() if weight.shape in ([VOCAB, 32], [32, VOCAB])] == [
        "lm_head.weight"
    ]

    model = save_model(make_model("llama", tie_word_embeddings=False), tmp_path / "model")
    export(model, tmp_path / "untied", check=False)
    extra = (tmp_path / "untied/base.onnx.data").stat().st_size - (tied / "base.onnx.data").stat().st_size
    assert abs(extra - 4 * cells) < 4096  # up to the alignment of tensors in the file


def test_cosines_are_computed_once(family_bundle: FamilyPath):
    graph = ir.load(family_bundle("llama") / "base.onnx").graph
    assert sum(node.op_type in ("Cos", "Sin") for node in graph) == 2


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3_text", "mixtral"])
def test_half_precision(family: str, dtype: Dtype, family_model: FamilyPath, tmp_path: Path):
    exported = export(family_model(family), tmp_path / "bundle", dtype=dtype)

    assert exported.parity is not None
    assert exported.parity.bound == parity.BOUNDS[dtype]
    kind = {"fp16": "float16", "bf16": "bfloat16"}[dtype]
    graph = exported.manifest.graphs["base"]
    cache = [item.dtype for item in (*graph.inputs, *graph.outputs) if "key" in item.name or "value" in item.name]
    assert cache == [kind] * 8
    assert exported.manifest.model.dtype == dtype


def test_features_are_the_inputs_of_three_layers(tmp_path: Path):
    torch_model = make_model("llama", num_hidden_layers=7)
    model = save_model(torch_model, tmp_path / "model")
    exported = export(model, tmp_path / "bundle", features=True, check=True)
    assert [item.name for item in exported.manifest.graphs["base"].outputs[2:6]] == [
        "hidden_states", "features.0", "features.1", "features.2",
    ]  # fmt: skip

    loop = GreedyLoop(tmp_path / "bundle")
    found = loop.run(PROMPT, rows=[], extra=[names.feature(index) for index in range(3)])
    with torch.no_grad():
        expected = torch_model(torch.tensor([PROMPT]), output_hidden_states=True).hidden_states
    for index, layer in enumerate((2, 3, 4)):
        torch.testing.assert_close(torch.from_numpy(found[names.feature(index)]), expected[layer], atol=1e-4, rtol=1e-4)


def test_features_of_a_shallow_model_are_refused_before_its_weights_are_read(family_model: FamilyPath, tmp_path: Path):
    model = Path(shutil.copytree(family_model("llama"), tmp_path / "model"))
    (model / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="the target has 2 layers: expected different ones"):
        export(model, tmp_path / "bundle", features=True)


def test_the_tokenizer_is_kept_with_its_chat_template(tmp_path: Path):
    model = save_tokenizer(save_model(make_model("llama"), tmp_path / "model"))
    export(model, tmp_path / "bundle", check=False)

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "bundle")
    original = AutoTokenizer.from_pretrained(model)
    assert tokenizer("hello, world").input_ids == original("hello, world").input_ids
    chat = [{"role": "user", "content": "hi"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "<user>hi"


def test_a_model_without_tokenizer_makes_a_bundle_without(family_bundle: FamilyPath):
    assert sorted(path.name for path in family_bundle("qwen2").iterdir()) == [
        "base.onnx", "base.onnx.data", "manifest.json",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "proportional", "partial_rotary_factor": 0.5},
        {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_rope_kinds_past_the_original_length(rope: dict[str, Any], tmp_path: Path):
    model = save_model(make_model("llama", rope_parameters={"rope_theta": 1e4, **rope}), tmp_path / "model")
    export(model, tmp_path / "bundle")

    count = 3 * COUNT  # to position 86, far past 16
    expected = generate(model, PROMPT, count)
    assert GreedyLoop(tmp_path / "bundle").generate(PROMPT, count) == expected
    assert expected != generate(save_model(make_model("llama"), tmp_path / "plain"), PROMPT, count)


def test_an_existing_output_is_refused_and_left_alone(family_model: FamilyPath, tmp_path: Path):
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "mine").write_text("precious")
    with pytest.raises(ConfigError, match=r"exists already.*--force"):
        export(family_model("llama"), tmp_path / "bundle")
    assert (tmp_path / "bundle" / "mine").read_text() == "precious"


def test_an_existing_output_is_replaced_on_request(family_model: FamilyPath, tmp_path: Path):
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "old").write_text("old")
    with pytest.raises(ConfigError, match="never replaced"):
        export(family_model("llama"), tmp_path / "bundle", replace=True, check=False)
    (tmp_path / "bundle" / "manifest.json").touch()
    export(family_model("llama"), tmp_path / "bundle", replace=True, check=False)
    assert not (tmp_path / "bundle" / "old").exists()
    load_manifest(tmp_path / "bundle", verify=True)


def test_a_failure_keeps_the_old_output(family_model: FamilyPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "manifest.json").touch()
    monkeypatch.setattr(bundle, "trace_base", _fail)
    with pytest.raises(ExportError, match="no luck"):
        export(family_model("llama"), tmp_path / "bundle", replace=True)
    assert [path.name for path in tmp_path.rglob("*")] == ["bundle", "manifest.json"]


def _fail(*_):
    raise ExportError("no luck")


def test_steps_are_announced_in_order(family_model: FamilyPath, tmp_path: Path):
    steps: list[str] = []
    export_bundle(ExportConfig(model=str(family_model("llama")), output=tmp_path / "bundle"), steps.append)
    assert tuple(steps) == STEPS


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("interrupt", ["ctrl-c", "sigterm"])
def test_an_interruption_leaves_nothing(interrupt: str, step: str, family_model: FamilyPath, tmp_path: Path):
    def stop(begun: str) -> None:
        if begun == step:
            if interrupt == "sigterm":
                os.kill(os.getpid(), signal.SIGTERM)
            raise KeyboardInterrupt

    config = ExportConfig(model=str(family_model("llama")), output=tmp_path / "bundle")
    with pytest.raises(KeyboardInterrupt):
        export_bundle(config, stop)
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize("place", ["save", "describe_files", "save_manifest"])
def test_a_full_disk_leaves_nothing(
    place: str, family_model: FamilyPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(*args, **_):
        path = next(arg for arg in args if isinstance(arg, Path))
        (path / "part" if path.is_dir() else path).write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    output = tmp_path / "out" / "bundle"
    monkeypatch.setattr(ir if place == "save" else bundle, place, full)
    with pytest.raises(SpecTrtError, match="No space left on device; nothing was kept"):
        export(family_model("llama"), output, check=False)
    assert list(output.parent.iterdir()) == []


def test_too_little_space_is_told_before_writing(
    family_model: FamilyPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(ExportError, match=r"take 0 MB, but .*out has 0 MB free: make room"):
        export(family_model("llama"), tmp_path / "out" / "bundle", check=False)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_failed_load_leaves_nothing(tmp_path: Path):
    with pytest.raises(ModelError):
        export(Path("/no/such/model"), tmp_path / "out" / "bundle")
    assert list((tmp_path / "out").iterdir()) == []


def test_the_check_needs_onnxruntime(family_model: FamilyPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(BackendError, match=r"spec-trt\[cpu\].*spec-trt\[gpu\].*--no-check"):
        export(family_model("llama"), tmp_path / "bundle")
    assert export(family_model("llama"), tmp_path / "bundle", check=False).parity is None


def test_the_graph_is_valid_onnx(family_bundle: FamilyPath):
    onnx.checker.check_model(family_bundle("gemma2") / "base.onnx", full_check=True)


@pytest.mark.parametrize(
    ("options", "reason"), [({"dtype": "fp8"}, "unknown dtype 'fp8'"), ({"model": ""}, "no model")]
)
def test_a_bad_configuration_is_refused(options: dict[str, Any], reason: str):
    with pytest.raises(ConfigError, match=reason):
        ExportConfig(**{"model": "x", "output": Path("y"), **options})


@pytest.mark.slow
def test_the_real_model_from_its_gguf_file(smollm2_gguf: Path, tmp_path: Path):
    exported = export(smollm2_gguf, tmp_path / "bundle")

    facts = exported.manifest.model
    assert (facts.family, facts.layers, facts.heads, facts.kv_heads, facts.vocab) == ("llama", 30, 9, 3, 49152)
    assert facts.eos_ids == [2]
    assert exported.manifest.source.model == smollm2_gguf.name
    assert exported.parity is not None
    assert exported.parity.largest < 5e-4
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "bundle")
    assert tokenizer.decode(tokenizer("Grüße, 世界!").input_ids) == "Grüße, 世界!"
    assert "<|im_start|>" in tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert json.loads((tmp_path / "bundle" / "manifest.json").read_text())["schema_version"] == 1
