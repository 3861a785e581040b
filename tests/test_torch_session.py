"""The loop over PyTorch's modules: what a GPU without TensorRT runs, its attention the reference."""

import pytest
import torch

from spec_trt.export.config import ExportConfig
from spec_trt.export.torch_reference import reference
from spec_trt.runtime.engine import Engine
from spec_trt.runtime.generation import GenerationConfig
from tests.families import make_model, save_model
from tests.gpu_check.lossless import OPTIONS, SAMPLED, report_methods, run_methods
from tests.gpu_check.report import Outcome
from tests.gpu_check.subject import drawn_prompts, write_random
from tests.heads.checkpoints import write_eagle, write_eagle3, write_medusa_v2
from tests.torch_session import TorchModel, fixed_shapes

CPU = torch.device("cpu")
PROMPTS = [[65], [70, 71, 72, 70, 71], [3 + token * token % 117 for token in range(100)]]
SHAPES = fixed_shapes(length=160, nodes=32, chunk=48)


def load(directory, model, output, **heads):
    return TorchModel(ExportConfig(model=str(save_model(model, directory)), output=output, check=False, **heads))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    root = tmp_path_factory.mktemp("torch")
    write_medusa_v2(root / "medusa", heads=4)
    write_eagle(root / "eagle")
    return load(root / "model", make_model("llama"), root / "out", medusa=root / "medusa", eagle=root / "eagle")


@pytest.fixture(scope="module")
def eagle3_model(tmp_path_factory):
    root = tmp_path_factory.mktemp("torch3")
    write_eagle3(root / "eagle")
    return load(root / "model", make_model("llama", num_hidden_layers=7), root / "out", eagle=root / "eagle")


def test_sampled_too(model):
    engine, outcome = model.engine(reference, CPU, fixed=SHAPES), Outcome()
    report_methods(outcome, "PyTorch", run_methods(engine, PROMPTS[:2], tokens=20, sampling=SAMPLED))
    assert outcome.failures == []


def generate(engine, prompt, method="autoregressive", count=25):
    config = GenerationConfig(method=method, options=OPTIONS.get(method, {}), max_new_tokens=count, ignore_eos=True)
    return engine.generate(prompt, config).token_ids


@pytest.mark.parametrize("fixed", [None, SHAPES], ids=["growing", "fixed"])
def test_every_method_is_lossless(model, fixed):
    engine = model.engine(reference, CPU, fixed=fixed)
    assert len(engine.methods) == 7
    results, outcome = run_methods(engine, PROMPTS, tokens=25), Outcome()
    report_methods(outcome, "PyTorch", results)
    assert outcome.failures == []
    assert all(result.near_ties == 0 for result in results.values())
    assert results["eagle2"].stats.nodes > results["eagle2"].stats.passes


@pytest.mark.parametrize("method", ["eagle", "eagle2"])
def test_eagle_3_is_lossless(eagle3_model, method):
    engine = eagle3_model.engine(reference, CPU, fixed=SHAPES)
    for prompt in PROMPTS:
        assert generate(engine, prompt, method) == generate(engine, prompt)


def test_it_gives_what_onnx_runtime_gives(family_engine, family_model, tmp_path):
    config = ExportConfig(model=str(family_model("llama")), output=tmp_path, check=False)
    ours, theirs = TorchModel(config).engine(reference, CPU), Engine.load(family_engine("llama"), threads=1)
    for prompt in PROMPTS:
        assert generate(ours, prompt) == generate(theirs, prompt)


def test_a_random_subject_runs_too(tmp_path):
    shape = {
        "vocab_size": 300,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
    }
    root = write_random(tmp_path / "random", shape)
    config = ExportConfig(
        model=str(root / "model"), output=tmp_path, medusa=root / "medusa", eagle=root / "eagle", check=False
    )
    engine = TorchModel(config).engine(reference, CPU, fixed=fixed_shapes(length=100, nodes=64, chunk=64))
    [prompt] = drawn_prompts(count=1, vocab=300, length=12)
    assert prompt[:6] == prompt[6:]
    for method in engine.methods:
        assert generate(engine, prompt, method, count=8) == generate(engine, prompt, count=8)
