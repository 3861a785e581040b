import pytest

from spec_trt.training.base import FrozenBase, load_base
from spec_trt.training.config import EagleSettings, MedusaSettings, TrainConfig
from spec_trt.training.train import train_head
from tests.families import make_model
from tests.training.models import chat_model, conversation, write_lines


def test_the_projection_is_where_the_base_is():
    model = make_model("llama").requires_grad_(False)
    base = FrozenBase(model)
    model.to("meta")  # as another device: weights become other tensors
    assert base.projection.weight.device.type == "meta"
    assert base.projection.weight.shape == (model.config.vocab_size, 32)


@pytest.mark.parametrize(
    ("family", "head", "attention"),
    [
        ("gemma2", EagleSettings(unroll=1), "eager"),  # its softcap is not in PyTorch's own attention
        ("gpt_neox", MedusaSettings(heads=1), "sdpa"),
        ("opt", EagleSettings(unroll=1), "sdpa"),  # its lm_head is narrower than its layers
    ],
)
def test_a_base_of_any_family_can_be_learned_from(tmp_path, family, head, attention):
    model = chat_model(tmp_path / "tiny", family=family)
    assert load_base(str(model), "fp32").model.config._attn_implementation == attention
    data = write_lines(tmp_path / "data.jsonl", [conversation(f"q{number}", "abcabc") for number in range(6)])
    config = TrainConfig(
        model=str(model), out=tmp_path / "out", head=head, data=(data,), held_out=0, max_steps=1, precision="fp32"
    )
    assert train_head(config, lambda _: None)["steps"] == 1
    assert (config.out / "config.json").is_file()
