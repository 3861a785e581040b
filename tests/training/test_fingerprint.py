import torch

from spec_trt.training.fingerprint import fingerprint
from tests.families import make_model


def test_equal_models_have_one_wherever_they_came_from():
    first, second = make_model("llama"), make_model("llama")
    second.config._name_or_path = "elsewhere"
    assert fingerprint(first) == fingerprint(second)


def test_models_that_differ_anywhere_differ():
    models = [make_model("llama") for _ in range(3)]
    models.append(make_model("llama", rope_parameters={"rope_type": "default", "rope_theta": 77.0}))
    models.append(make_model("llama").to(torch.bfloat16))
    with torch.no_grad():
        models[1].model.layers[1].self_attn.q_proj.weight.mul_(1.01)  # as fine-tuning by low-rank weights would
        models[2].model.norm.weight.mul_(1.01)
    assert len(set(map(fingerprint, models))) == 5
