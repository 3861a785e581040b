"""A checkpoint is loaded whole or not at all."""

import json
import shutil
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from safetensors.torch import load_file, save_file

from spec_trt.errors import ModelError
from spec_trt.export.load import LoadedModel, load_model
from spec_trt.export.source import locate
from tests.conftest import FamilyPath
from tests.families import make_model, save_model
from tests.tokenizers import save_tokenizer


def load(directory: Path | str) -> LoadedModel:
    return load_model(locate(str(directory)), "fp32")


@pytest.fixture
def checkpoint(family_model: FamilyPath, tmp_path: Path) -> Path:
    """A copy of llama's directory, to be damaged."""
    return Path(shutil.copytree(family_model("llama"), tmp_path / "checkpoint"))


def rewrite(checkpoint: Path, **changes: torch.Tensor | None) -> None:
    """Change or drop tensors of a checkpoint; `__` stands for a dot."""
    file = checkpoint / "model.safetensors"
    tensors = load_file(file)
    for name, tensor in changes.items():
        if tensor is None:
            del tensors[name.replace("__", ".")]
        else:
            tensors[name.replace("__", ".")] = tensor
    save_file(tensors, file, metadata={"format": "pt"})


def test_the_model_is_ready_to_trace(family_model: FamilyPath):
    loaded = load(family_model("llama"))
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert loaded.tokenizer is None
    assert loaded.revision is None


@pytest.mark.parametrize(("dtype", "expected"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_all_weights_have_the_dtype(family_model: FamilyPath, dtype, expected: torch.dtype):
    model = load_model(locate(str(family_model("gemma2"))), dtype).model
    assert {parameter.dtype for parameter in model.parameters()} == {expected}


def test_missing_weights_are_named(checkpoint: Path):
    rewrite(checkpoint, model__norm__weight=None, model__layers__1__mlp__up_proj__weight=None)
    with pytest.raises(ModelError, match=r"2 missing \(model\.layers\.1\.mlp\.up_proj\.weight, model\.norm\.weight\)"):
        load(checkpoint)


def test_unexpected_weights_are_named(checkpoint: Path):
    rewrite(checkpoint, model__layers__0__adapter=torch.ones(3))
    with pytest.raises(ModelError, match=r"1 unexpected \(model\.layers\.0\.adapter\)"):
        load(checkpoint)


def test_many_faults_are_shortened(checkpoint: Path):
    rewrite(checkpoint, **{f"extra{index}": torch.ones(3) for index in range(7)})
    with pytest.raises(ModelError, match=r"7 unexpected \(extra0, extra1, extra2, extra3, and 3 more\)"):
        load(checkpoint)


def test_weights_of_another_shape_are_named(checkpoint: Path):
    rewrite(checkpoint, model__norm__weight=torch.ones(31))
    with pytest.raises(ModelError, match=r"1 of another shape \(model\.norm\.weight\)"):
        load(checkpoint)


def test_truncated_weights(checkpoint: Path):
    file = checkpoint / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(ModelError, match="cannot load checkpoint"):
        load(checkpoint)


def test_no_weights(checkpoint: Path):
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="cannot load checkpoint"):
        load(checkpoint)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"model_type": "no_such_family"}'])
def test_broken_configuration(checkpoint: Path, text: str):
    (checkpoint / "config.json").write_text(text)
    with pytest.raises(ModelError, match="cannot load checkpoint"):
        load(checkpoint)


def test_remote_code_is_never_run(checkpoint: Path):
    config = json.loads((checkpoint / "config.json").read_text())
    config |= {"model_type": "other", "auto_map": {"AutoConfig": "other.Config", "AutoModelForCausalLM": "other.Model"}}
    (checkpoint / "config.json").write_text(json.dumps(config))
    (checkpoint / "other.py").write_text("raise SystemExit('this must not run')")
    with pytest.raises(ModelError, match="trust_remote_code"):
        load(checkpoint)


def test_a_hub_id_that_is_absent_offline(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=r"cannot load nobody/no-such-model: .*offline") as caught:
        load("nobody/no-such-model")
    assert "\n" not in str(caught.value)


def test_a_broken_gguf_file(tmp_path: Path):
    (tmp_path / "broken.gguf").write_bytes(b"GGUF\x03\x00\x00\x00 and nothing of sense")
    with pytest.raises(ModelError, match=r"cannot load broken\.gguf"):
        load(tmp_path / "broken.gguf")


def test_end_of_text_is_what_any_file_says(tmp_path: Path):
    model = make_model("llama", eos_token_id=2)
    model.generation_config.eos_token_id = [2, 9]
    save_tokenizer(save_model(model, tmp_path), end="<|im_end|>")

    loaded = load(tmp_path)
    assert loaded.tokenizer is not None
    assert loaded.eos_ids == sorted({2, 9, loaded.tokenizer.eos_token_id})
    assert loaded.tokenizer.eos_token_id not in (2, 9)


def test_experts_run_without_data_dependent_shapes(family_model: FamilyPath):
    assert load(family_model("mixtral")).model.config._experts_implementation == "batched_mm"
