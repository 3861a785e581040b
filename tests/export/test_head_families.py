"""What a family does behind its last hidden state carries over to its heads."""

from pathlib import Path

import pytest
import torch
from torch import nn

from spec_trt import names
from spec_trt.errors import ModelError
from spec_trt.export.config import ExportConfig
from spec_trt.export.heads import LoadedHeads, load_heads
from spec_trt.export.load import load_model
from spec_trt.export.source import locate
from spec_trt.heads.medusa_checkpoint import load_medusa
from spec_trt.heads.target import head_target
from tests.conftest import FamilyPath
from tests.export.head_sessions import open_graphs, run
from tests.families import FAMILIES, make_model
from tests.heads.checkpoints import HIDDEN, write, write_medusa_v2


@pytest.mark.parametrize("family", ["llama", "phi", "gemma2", "granite", "cohere"])
def test_a_head_that_changes_nothing_is_the_target(family: str, tmp_path: Path):
    model = make_model(family)
    blocks = {"0.0.linear.weight": torch.zeros(HIDDEN, HIDDEN), "0.0.linear.bias": torch.zeros(HIDDEN)}
    write(tmp_path / "heads", blocks, {"version": "2"}, "medusa_lm_head.safetensors")
    heads = LoadedHeads(medusa=load_medusa(tmp_path / "heads", head_target(model)))
    session = open_graphs(heads, tmp_path)[names.MEDUSA]

    with torch.no_grad():
        out = model(input_ids=torch.arange(1, 25)[None] * 11, output_hidden_states=True, use_cache=False)
    found = run(session, {names.HIDDEN_STATES: out.hidden_states[-1]})
    expected, ids = out.logits.log_softmax(-1).topk(10)
    torch.testing.assert_close(found[names.LOG_PROBS][:, :, 0], expected, atol=1e-4, rtol=1e-4)
    assert torch.equal(found[names.TOKEN_IDS][:, :, 0], ids)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_path_to_the_logits_is_followed(family: str, family_model: FamilyPath, tmp_path: Path):
    hidden = 24 if family == "opt" else HIDDEN
    blocks = {"0.0.linear.weight": torch.zeros(hidden, hidden), "0.0.linear.bias": torch.zeros(hidden)}
    write(tmp_path / "heads", blocks, {"version": "2"}, "medusa_lm_head.safetensors")
    loaded = load_model(locate(str(family_model(family))), "bf16")
    config = ExportConfig(model=family, output=tmp_path / "bundle", medusa=tmp_path / "heads")
    assert load_heads(config, loaded).medusa is not None


def test_a_path_to_the_logits_that_heads_lack_is_refused(family_model: FamilyPath, tmp_path: Path):
    write_medusa_v2(tmp_path / "heads")
    loaded = load_model(locate(str(family_model("llama"))), "fp32")
    loaded.model.get_output_embeddings().register_forward_hook(lambda _, __, logits: nn.functional.relu(logits))
    config = ExportConfig(model="llama", output=tmp_path / "bundle", medusa=tmp_path / "heads")
    with pytest.raises(ModelError, match="computes its logits in a way that draft heads can't follow"):
        load_heads(config, loaded)
