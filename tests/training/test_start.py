from dataclasses import replace

import pytest
import torch

from spec_trt.errors import ConfigError, ModelError
from spec_trt.heads.eagle_checkpoint import save_eagle
from spec_trt.heads.medusa import MedusaConfig, MedusaHeads
from spec_trt.heads.medusa_checkpoint import load_medusa, save_medusa
from spec_trt.heads.target import head_target
from spec_trt.training.base import load_base
from spec_trt.training.config import EagleSettings, MedusaSettings
from spec_trt.training.eagle import new_eagle
from spec_trt.training.start import checkpoint_digest, started_eagle, started_medusa
from spec_trt.training.train import train_head
from tests.training.models import HEADS, chat_model, tiny_config, weights, write_rule


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return load_base(str(chat_model(tmp_path_factory.mktemp("model") / "tiny", layers=7)), "fp32")


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    directory = tmp_path_factory.mktemp("start")
    model, data = chat_model(directory / "tiny", layers=7), write_rule(directory / "data.jsonl")
    return replace(tiny_config(model, data, directory / "out"), evaluate_every=12, draft_vocab=40)


@pytest.mark.parametrize("name", HEADS)
def test_training_goes_on_with_a_heads_weights_and_ids(config, tmp_path, name):
    first = replace(config, head=HEADS[name], out=tmp_path / "first")
    begun = train_head(first, lambda _: None)["learning_curve"][-1]
    lines: list[str] = []
    second = replace(first, out=tmp_path / "second", draft_vocab=None, start_from=first.out, learning_rate=1e-6)
    card = train_head(second, lines.append)
    assert card["start_from"] == "first"
    assert card["learning_curve"][-1]["loss"] == pytest.approx(begun["loss"], rel=0.01)
    before, after = weights(first.out), weights(second.out)
    assert torch.equal(before["d2t"], after["d2t"])
    assert any("draft vocabulary: 40 ids" in line for line in lines)
    changes = [(before[key] - after[key]).abs().max() for key in before if key != "d2t"]
    assert 0 < max(changes) < 1e-2


def test_a_head_is_loaded_unrounded_and_to_be_trained(base, tmp_path):
    target = head_target(base.model.to(torch.bfloat16))
    draft = new_eagle(target, base.model.config, None, 1)
    save_eagle(draft, tmp_path, draft_ids=None, standalone=False, dtype=torch.float32)
    loaded = started_eagle(tmp_path, target, EagleSettings()).draft
    base.model.float()
    assert loaded.training
    assert all(weight.requires_grad for weight in loaded.parameters())
    for name, weight in draft.named_parameters():
        assert torch.equal(loaded.get_parameter(name), weight)


def test_another_kind_of_head_is_refused(base, tmp_path):
    target = head_target(base.model)
    for name in ("eagle", "medusa", "whole"):
        (tmp_path / name).mkdir()
    save_eagle(new_eagle(target, base.model.config, None, 3), tmp_path / "eagle", draft_ids=None, standalone=False)
    heads = MedusaHeads(
        MedusaConfig(hidden=target.hidden, heads=3, layers=1, draft_vocab=target.vocab, shared_projection=True),
        [target.projection.shared()],
    )
    save_medusa(heads, tmp_path / "medusa", draft_ids=None, standalone=False)
    save_medusa(heads, tmp_path / "whole", draft_ids=None, standalone=True)
    with pytest.raises(ConfigError, match="EAGLE version 3: add --version 3"):
        started_eagle(tmp_path / "eagle", target, EagleSettings())
    with pytest.raises(ConfigError, match="3 heads of 1 layers: add --heads 3 --layers 1"):
        started_medusa(tmp_path / "medusa", target, MedusaSettings(heads=2))
    with pytest.raises(ConfigError, match="projection in every head"):
        started_medusa(tmp_path / "whole", target, MedusaSettings(heads=3))
    with pytest.raises(ModelError, match="holds no EAGLE head"):
        started_eagle(tmp_path / "medusa", target, EagleSettings())
    assert load_medusa(tmp_path / "whole", target).heads.config.heads == 3


def test_a_checkpoint_is_told_from_others_by_what_it_holds(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "weights").write_text("1")
    first = checkpoint_digest(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    assert checkpoint_digest(tmp_path / "b") == first
    (tmp_path / "b" / "weights").write_text("2")
    assert checkpoint_digest(tmp_path / "b") != first
    with pytest.raises(ConfigError, match="does not exist: --start-from takes"):
        checkpoint_digest(tmp_path / "a")


def test_a_heads_own_ids_leave_none_to_choose(config, tmp_path):
    with pytest.raises(ConfigError, match="leave out --draft-vocab"):
        replace(config, start_from=tmp_path)
