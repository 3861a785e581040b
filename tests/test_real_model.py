"""The whole chain on the real model: export, build, and lossless generation."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from spec_trt.builder.calibration_text import EXCHANGES
from spec_trt.runtime.engine import Engine
from spec_trt.runtime.generation import GenerationConfig
from spec_trt.runtime.near_tie import compare_outputs
from spec_trt.tokenizer import load_tokenizer

pytestmark = pytest.mark.slow

PROMPTS = [
    "Name three colours of the rainbow.",
    "Repeat this list backwards: alpha, beta, gamma, delta, epsilon.",
    "Write a haiku about the sea.",
]


@pytest.fixture(scope="module")
def engine(smollm2_engine):
    return Engine.load(smollm2_engine("fp32"))


@pytest.fixture(scope="module")
def transformers_model(smollm2_gguf):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        str(smollm2_gguf.parent), gguf_file=smollm2_gguf.name, dtype=torch.float32
    ).eval()


@pytest.mark.parametrize("prompt", PROMPTS)
def test_plain_decoding_equals_transformers(engine, transformers_model, prompt):
    ids = engine.encode(prompt, chat=True)
    result = engine.generate(ids, GenerationConfig(max_new_tokens=48))
    inputs = torch.tensor([ids])
    with torch.no_grad():
        output = transformers_model.generate(
            inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=48, do_sample=False
        )
    expected = [token for token in output[0, len(ids) :].tolist() if token not in engine.manifest.model.eos_ids]
    assert compare_outputs(engine, ids, expected, result.token_ids).verdict != "different"


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_every_method_equals_plain_decoding(smollm2_engine, precision):
    engine = Engine.load(smollm2_engine(precision))
    for prompt in PROMPTS:
        ids = engine.encode(prompt, chat=True)
        plain, *others = (
            engine.generate(ids, GenerationConfig(method=method, max_new_tokens=48)) for method in engine.methods
        )
        for method, result in zip(engine.methods[1:], others, strict=True):
            comparison = compare_outputs(engine, ids, plain.token_ids, result.token_ids)
            assert comparison.verdict != "different", (method, comparison)


@pytest.mark.parametrize(("method", "least"), [("medusa", 1.3), ("eagle", 1.4), ("eagle2", 1.4)])
def test_trained_heads_are_right_often(engine, method, least):
    config = GenerationConfig(method=method, max_new_tokens=64)
    results = [engine.generate(engine.encode(prompt, chat=True), config) for prompt in PROMPTS]
    emitted, passes = (sum(getattr(result.stats, name) for result in results) for name in ("emitted", "passes"))
    assert emitted / passes > least


@pytest.mark.parametrize("precision", ["fp32", "int8"])  # int4 costs so small a model too much to answer this
def test_the_model_still_knows_what_it_knew(smollm2_engine, precision):
    engine = Engine.load(smollm2_engine(precision))
    ids = engine.encode("What is the capital of France? Answer in one word.", chat=True)
    assert "Paris" in engine.generate(ids, GenerationConfig(max_new_tokens=24)).text


def test_perplexity_stays_near_the_bundles(smollm2_bundle, smollm2_engine, tmp_path):
    from spec_trt.builder.evaluate import evaluate, evaluation_tokens

    texts = tmp_path / "texts.jsonl"
    lines = [{"text": f"{exchange.question} {exchange.answer}"} for exchange in EXCHANGES]
    texts.write_text("\n".join(map(json.dumps, lines)))
    tokens = evaluation_tokens(load_tokenizer(smollm2_bundle), texts)
    for precision, bound in (("int8", 1.03), ("int4", 1.5)):
        found = evaluate(smollm2_bundle / "base.onnx", smollm2_engine(precision) / "base.onnx", tokens)
        assert found.ratio < bound, (precision, found)


def test_the_demo_ends_in_a_table_of_equal_outputs(smollm2_engine, tmp_path):
    directory = smollm2_engine("int8").parent
    done = subprocess.run(
        [sys.executable, "-m", "spec_trt", "demo", "--directory", directory, "--max-new-tokens", "24"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    table = done.stdout[done.stdout.rindex("3 prompts") :]
    assert all(method in table for method in Engine.load(directory / "engine-int8").methods)
    assert "NO" not in table


def test_bench_json_on_the_real_model(smollm2_engine, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt": prompt}) for prompt in PROMPTS))
    command = [sys.executable, "-m", "spec_trt", "bench", smollm2_engine("fp32"), "--prompts", prompts, "--json"]
    done = subprocess.run(
        [*command, "--max-new-tokens", "32"], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    methods = json.loads(done.stdout)["methods"]
    assert all(score["identical"] for score in methods.values())
    assert methods["autoregressive"]["accept_length"] == 1


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted as Linux shows them")
def test_pytorch_starts_no_threads(smollm2_engine):
    """They would hold cores that ONNX Runtime's need, for a fifth of a second after each large operation."""
    program = f"""
import os
import torch
from dataclasses import replace
from pathlib import Path
from spec_trt.runtime import Engine, GenerationConfig, Sampling

def threads():
    return len(os.listdir("/proc/self/task"))

torch.set_num_threads(5)
engine = Engine.load(Path({str(smollm2_engine("int8"))!r}))
loaded = threads()
for first, method in enumerate(engine.methods):
    prompts = [[first * 10 + place, *range(100, 300)] for place in range(2)]  # each method reads its own
    drawn = Sampling(temperature=1.0, repetition_penalty=1.1, seed=0)
    for sampling in (Sampling(), drawn, replace(drawn, repetition_penalty=1.0, draft_sampling=True)):
        for log_probs in (False, True):
            if method == "eagle" or not sampling.draft_sampling:
                engine.generate(prompts, GenerationConfig(method=method, sampling=sampling, max_new_tokens=8,
                                                          log_probs=log_probs))
engine.next_logits(prompts[0])
decoding = threads() - loaded
torch.zeros(1_000_000).clone()
print(decoding, threads() - loaded - decoding)
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True, env=environment
    )
    assert done.stdout.split() == ["1", "4"]  # the scheduler's; and PyTorch's, had they been started
