"""The parts themselves, on the CPU: the GPU's clock and kernels, and TensorRT, have stand-ins."""

import math
from typing import Any, cast

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from spec_trt.export.config import ExportConfig
from spec_trt.export.torch_reference import reference
from spec_trt.plugins.tree_attention.reference import tree_attention
from spec_trt.runtime.engine import Engine, GenerationConfig
from tests.families import make_model, save_model
from tests.gpu_check import engines, kernel_timing, kernels, speed
from tests.gpu_check.kernel_timing import Case, CaseOperands, flex_runner
from tests.gpu_check.report import Outcome
from tests.gpu_check.subject import TEXTS, encoded_prompts, long_prompt
from tests.gpu_check.timing import host_ms
from tests.plugins.operands import INPUTS
from tests.runtime.fake_engine import save_byte_tokenizer
from tests.torch_session import TorchModel, fixed_shapes

CPU = torch.device("cpu")


def on_the_host(*tensors, **given):
    """The op's definition, as the kernel is called."""
    operands: dict[str, Any] = dict(zip(INPUTS, tensors, strict=False)) | given
    dtype = operands["query"].dtype
    for name in set(INPUTS) & set(operands):
        tensor = operands[name]
        operands[name] = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    return torch.from_numpy(np.asarray(tree_attention(**operands))).to(dtype)


def test_the_comparison_passes_a_right_kernel_and_fails_a_wrong_one(monkeypatch):
    monkeypatch.setattr(kernels, "tree_attention", on_the_host)
    right, wrong = Outcome(), Outcome()
    kernels.compare_attention(right, [(2, 1, 2, 3, 2, 9, 8)], CPU)
    assert right.failures == []
    assert 0 < right.figures["attention_error"]["fp16"] < right.figures["attention_error"]["bf16"]
    monkeypatch.setattr(kernels, "tree_attention", lambda **given: on_the_host(**given) * 1.05)
    kernels.compare_attention(wrong, [(2, 1, 2, 3, 2, 9, 8)], CPU)
    assert len(wrong.failures) == 10
    assert wrong.failures[0].startswith("TreeAttention in fp16, plain, (2, 1, 2, 3, 2, 9, 8): off by 0.05")


def test_a_commit_that_writes_elsewhere_is_a_failure(monkeypatch):
    def commit_rows(buffer, new_rows, paths, counts, lengths):
        for row in range(3):
            for place in range(int(counts[row])):
                buffer[:, row, :, lengths[row] + place] = new_rows[:, row, :, paths[row, place]]

    outcome = Outcome()
    monkeypatch.setattr(kernels, "commit_rows", commit_rows)
    kernels.compare_commit(outcome, CPU)
    assert outcome.failures == []
    monkeypatch.setattr(kernels, "commit_rows", lambda *_: None)
    kernels.compare_commit(outcome, CPU)
    assert outcome.failures == [
        f"commit_rows in {name} wrote other rows than it was asked to" for name in ("fp16", "bf16")
    ]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_the_kernel_and_its_peers_are_timed_on_the_same_computation(monkeypatch):
    from torch.nn.attention.flex_attention import flex_attention

    monkeypatch.setattr(kernel_timing, "tree_attention", on_the_host)
    operands = CaseOperands(Case(past=24, nodes=3, batch=2), 0, CPU, torch.float32)
    expected = operands.run_kernel()
    for found in (
        operands.run_sdpa(),
        operands.run_sdpa(*operands.repeated()),
        flex_runner(operands, flex_attention)(operands),
    ):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    root = tmp_path_factory.mktemp("subject")
    config = ExportConfig(model=str(save_model(make_model("llama"), root / "model")), output=root / "out", check=False)
    return TorchModel(config).engine(reference, CPU, fixed=fixed_shapes(length=120, nodes=64, chunk=64))


def test_costs_rates_and_gaps_of_an_engine_beside_a_peer(engine, monkeypatch):
    monkeypatch.setattr(speed, "event_ms", host_ms)
    prompt = list(range(3, 20))
    outcome = speed.run_speed({"engine": engine}, lambda: 50.0, prompt, tokens=6, rounds=2)
    costs = outcome.figures["engine"]["passes"]
    assert list(costs) == list(speed.NODES)
    assert costs[1]["of_one"] == 1
    assert all(row["wall_ms"] > 0 and row["gpu_ms"] > 0 for row in costs.values())
    rates = outcome.figures["plain_tokens_per_s"]
    assert rates[speed.PEER] == 50
    assert rates["engine"] > 0
    assert "over PyTorch's" in outcome.tables[-1]


def test_the_peer_decodes_with_its_own_copy_of_the_model(engine):
    config = ExportConfig(model=str(engine._tokenizer_directory), output=engine._tokenizer_directory, check=False)
    before = engine.generate([3, 4, 5], GenerationConfig(max_new_tokens=4, ignore_eos=True)).token_ids
    assert math.isfinite(speed.torch_peer(config, [3, 4, 5], tokens=24, device="cpu")())
    assert engine.generate([3, 4, 5], GenerationConfig(max_new_tokens=4, ignore_eos=True)).token_ids == before


def test_a_peer_that_can_not_run_is_a_note(engine, monkeypatch):
    def peer():
        raise RuntimeError("no compiler\nhere")

    monkeypatch.setattr(speed, "event_ms", host_ms)
    outcome = speed.run_speed({"engine": engine}, peer, [3, 4, 5], tokens=4, rounds=1)
    assert outcome.failures == []
    assert outcome.notes == [f"{speed.PEER}: RuntimeError: no compiler here"]


def test_prompts_are_texts_where_there_is_a_tokenizer(tmp_path):
    save_byte_tokenizer(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    [first, *_] = encoded_prompts(tokenizer)
    assert tokenizer.decode(first) == f"<{TEXTS[0]}>:"
    tokenizer.chat_template = None
    assert tokenizer.decode(encoded_prompts(tokenizer)[0]) == TEXTS[0]
    assert len(encoded_prompts(None)) == len(TEXTS)
    assert long_prompt([[1, 2], [3]], 7) == [1, 2, 3, 1, 2, 3, 1]


class Logits:
    """An engine that knows its logits alone."""

    precision = "fp16"

    def __init__(self, offset):
        self._offset = offset

    def next_logits(self, prompt):
        return torch.tensor([float(len(prompt)), 0.0, 2.0]) + self._offset


def test_engines_are_compared_and_one_that_fails_is_left_out(monkeypatch, tmp_path):
    built = []

    def build(config):
        built.append(config)
        if config.tensorrt.attention == "native":
            raise RuntimeError("no kernel\nfor this")

    monkeypatch.setattr(engines, "build_engine", build)
    monkeypatch.setattr(Engine, "load", lambda _path: Logits(torch.tensor([0.0, 0.5, 0.0])))
    paths = {name: tmp_path / name for name in engines.ATTENTIONS}
    outcome = engines.run_engines(
        "trt-rtx", tmp_path, cast(Engine, Logits(torch.zeros(3))), [[1], [1, 2, 3]], engines=paths, length=64
    )
    assert [config.backend for config in built] == ["trt-rtx"] * 2
    assert all(config.tensorrt.compute_capabilities is None for config in built)
    assert list(paths) == ["plugin"]
    assert outcome.figures["plugin"] == {"worst_logit": 0.5, "same_top": 2, "bound": 0.3}
    assert outcome.failures == ["plugin: logits off by 0.5", "trt-rtx, native: RuntimeError: no kernel for this"]


def test_every_engine_is_checked_whatever_becomes_of_another(engine):
    def broken():
        raise RuntimeError("no memory")

    outcome = engines.run_lossless({"broken": broken, "engine": lambda: engine}, [[3, 4, 5, 3, 4]], tokens=4)
    assert outcome.failures == ["broken: RuntimeError: no memory"]
    assert set(outcome.figures["engine"]) == set(outcome.figures["engine, sampled"]) == set(engine.methods)
