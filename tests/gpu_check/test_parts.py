"""The parts themselves, on the CPU: the GPU's clock and kernels, and TensorRT, have stand-ins."""

import math
from typing import Any, cast

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig

from spec_trt.builder.config import BuildConfig
from spec_trt.demo.run import demo_heads
from spec_trt.export.config import ExportConfig
from spec_trt.export.torch_reference import reference
from spec_trt.plugins.tree_attention.reference import tree_attention
from spec_trt.runtime.engine import Engine
from spec_trt.runtime.generation import GenerationConfig
from tests.families import make_model, save_model
from tests.gpu_check import engines, kernel_timing, kernels, lossless, speed, subject, torch_loop
from tests.gpu_check.check import Check
from tests.gpu_check.kernel_timing import Case, CaseOperands, flex_runner
from tests.gpu_check.options import files_of, parse
from tests.gpu_check.report import Outcome
from tests.gpu_check.subject import TEXTS, choose_subject, encoded_prompts, long_prompt
from tests.gpu_check.timing import host_ms
from tests.plugins.operands import INPUTS
from tests.runtime.fake_engine import save_byte_tokenizer
from tests.torch_session import TorchModel, fixed_shapes

CPU = torch.device("cpu")


def test_a_peer_without_room_or_kernel_has_no_time(monkeypatch):
    def no_room():
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(kernel_timing, "graph_ms", len)
    assert kernel_timing.peer_ms(no_room) is None
    assert kernel_timing.peer_ms(list) is None
    assert kernel_timing.peer_ms(lambda: [print, print]) == 2


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
    right, wrong, shape = Outcome(), Outcome(), (2, 1, 2, 3, 2, 9, 8)
    kernels.compare_attention(right, [shape], CPU, kernels.DTYPES)
    assert right.failures == []
    errors = right.figures[f"plain, {shape}"]
    assert 0 < errors["fp16"] < errors["bf16"]
    monkeypatch.setattr(kernels, "tree_attention", lambda **given: on_the_host(**given) * 1.05)
    kernels.compare_attention(wrong, [shape], CPU, kernels.DTYPES)
    assert len(wrong.failures) == 10
    assert wrong.failures[0].startswith(f"TreeAttention in fp16, plain, {shape}: off by 0.05")


def test_bf16_is_left_out_by_name_where_the_gpu_lacks_it(monkeypatch):
    compared = []
    monkeypatch.setattr(kernels, "compare_commit", lambda *given: compared.append(list(given[-1])))
    monkeypatch.setattr(kernels, "compare_attention", lambda *given: compared.append(list(given[3])))
    old, new = Outcome(), Outcome()
    kernels.run_kernels(old, has_bf16=False, stop=math.inf)
    assert old.notes == ["bf16 is left out: it needs compute capability 8.0"]
    kernels.run_kernels(new, has_bf16=True, stop=math.inf)
    assert new.notes == []
    assert compared == [["fp16"], ["fp16"], ["fp16", "bf16"], ["fp16", "bf16"]]


def test_a_comparison_that_runs_out_of_time_says_where_it_stopped(monkeypatch):
    monkeypatch.setattr(kernels, "tree_attention", on_the_host)
    outcome = Outcome()
    kernels.compare_attention(outcome, [(1, 1, 1, 1, 0, 4, 8)], CPU, kernels.DTYPES, stop=0.0)
    assert outcome.notes == ["no time for (1, 1, 1, 1, 0, 4, 8), plain and those after it"]
    assert outcome.failures == []


def test_a_commit_that_writes_elsewhere_is_a_failure(monkeypatch):
    def commit_rows(buffer, new_rows, paths, counts, lengths):
        for row in range(3):
            for place in range(int(counts[row])):
                buffer[:, row, :, lengths[row] + place] = new_rows[:, row, :, paths[row, place]]

    outcome = Outcome()
    monkeypatch.setattr(kernels, "commit_rows", commit_rows)
    kernels.compare_commit(outcome, CPU, kernels.DTYPES)
    assert outcome.failures == []
    monkeypatch.setattr(kernels, "commit_rows", lambda *_: None)
    kernels.compare_commit(outcome, CPU, kernels.DTYPES)
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


def test_costs_gaps_and_the_rate_of_an_engine(engine, monkeypatch):
    monkeypatch.setattr(speed, "event_ms", host_ms)
    outcome = Outcome()
    speed.time_engine(outcome, "engine", engine, list(range(3, 20)), tokens=6)
    costs = outcome.figures["passes"]
    assert list(costs) == list(speed.NODES)
    assert costs[1]["of_one"] == 1
    assert all(row["wall_ms"] > 0 and row["gpu_ms"] > 0 for row in costs.values())
    assert outcome.figures["plain_tokens_per_s"] > 0
    assert [len(table.rows) for table in outcome.tables] == [len(speed.NODES), 1]


def test_the_peer_decodes_with_its_own_copy_of_the_model(engine):
    config = ExportConfig(model=str(engine.directory), output=engine.directory, check=False)
    before = engine.generate([3, 4, 5], GenerationConfig(max_new_tokens=4, ignore_eos=True)).token_ids
    assert math.isfinite(speed.torch_peer(config, [3, 4, 5], tokens=24, device="cpu")())
    assert engine.generate([3, 4, 5], GenerationConfig(max_new_tokens=4, ignore_eos=True)).token_ids == before


def test_a_peer_that_can_not_run_is_a_note(tmp_path, monkeypatch):
    def peer(*_, **__):
        raise RuntimeError("no compiler\nhere")

    monkeypatch.setattr(speed, "torch_peer", peer)
    outcome = Outcome()
    speed.time_peer(outcome, ExportConfig(model=str(tmp_path), output=tmp_path), [3, 4, 5], tokens=4)
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


def test_an_engine_is_built_for_the_gpu_at_hand(monkeypatch, tmp_path):
    built: list[BuildConfig] = []
    monkeypatch.setattr(engines, "build_engine", built.append)
    assert engines.build("trt-rtx", tmp_path / "bundle", "native", tmp_path / "engine", length=64) >= 0
    [config] = built
    assert (config.backend, config.tensorrt.attention, config.tensorrt.max_length) == ("trt-rtx", "native", 64)
    assert config.tensorrt.compute_capabilities is None


@pytest.mark.parametrize(("offset", "failures"), [(0.2, []), (0.5, ["trt-rtx, plugin: logits off by 0.5"])])
def test_logits_are_compared_by_a_bound_of_the_type(offset, failures):
    outcome = Outcome()
    given, expected = (cast(Engine, Logits(torch.tensor(numbers))) for numbers in ([0.0, offset, 0.0], [0.0] * 3))
    engines.compare_logits(outcome, "trt-rtx, plugin", given, expected, [[1], [1, 2, 3]])
    assert outcome.failures == failures
    assert outcome.figures["logits"] == {
        "worst": pytest.approx(offset),
        "bound": 0.3,
        "same_best_token": 2,
        "prompts": 2,
    }


def test_losslessness_stops_between_prompts_when_the_time_is_over(engine):
    outcome, prompts = Outcome(), [[3, 4, 5, 3, 4], [5, 6]]
    lossless.check_lossless(outcome, "late", engine, prompts, tokens=4, stop=0.0)
    assert (outcome.notes, outcome.figures) == (["no time for late"], {})
    results = lossless.run_methods(engine, prompts, tokens=4, stop=0.0)
    assert {result.prompts for result in results.values()} == {1}
    lossless.check_lossless(outcome, "engine", engine, prompts, tokens=4, stop=math.inf)
    assert outcome.failures == []
    assert set(outcome.figures["engine"]) == set(engine.methods)
    assert {row["prompts"] for row in outcome.figures["engine"].values()} == {2}


@pytest.mark.parametrize("model", ["model.gguf", "directory"])
def test_the_demos_heads_are_for_models_of_its_shape_alone(model, monkeypatch, tmp_path):
    shape = dict(subject.SMOLLM2_135M)
    monkeypatch.setattr(subject, "locate", lambda name: name)
    monkeypatch.setattr(subject, "load_config", lambda _source: LlamaConfig(**shape))
    demo = choose_subject(model, medusa=None, eagle=None, dtype="fp16", work=tmp_path)
    assert (demo.config.medusa, demo.config.eagle, demo.notes) == (*demo_heads().values(), ())
    shape["num_hidden_layers"] = 24
    other = choose_subject(model, medusa=None, eagle=None, dtype="fp16", work=tmp_path)
    assert (other.config.medusa, other.config.eagle) == (None, None)
    assert "medusa, eagle and eagle2 are left out" in other.notes[0]


def run_check(part, outcome, tmp_path, *options):
    given = parse(["--tokens", "6", "--length", "120", "--past", "20", *options])
    files = files_of(given, tmp_path)
    Check(given, files, outcome, backend="trt-rtx", has_bf16=True, stop=math.inf).run(part)


def test_part_torch_from_end_to_end(family_model, monkeypatch, tmp_path):
    def on_the_cpu(model, *, length, **_):
        return model.engine(reference, CPU, fixed=fixed_shapes(length=length, nodes=64, chunk=64))

    monkeypatch.setattr(speed, "event_ms", host_ms)
    monkeypatch.setattr(torch_loop, "torch_engine", on_the_cpu)
    outcome = Outcome()
    run_check("torch", outcome, tmp_path, "--model", str(family_model("llama")))
    assert outcome.failures == []
    title = "PyTorch, Triton attention"
    assert set(outcome.figures) == {
        f"{title}, no CUDA graphs",
        title,
        f"{title}, sampled",
        "passes",
        "plain_tokens_per_s",
    }


def test_parts_with_engines_from_end_to_end(engine, monkeypatch, tmp_path):
    loaded = []

    def load(path, **given):
        loaded.append((path.name, given))
        return engine

    monkeypatch.setattr(speed, "event_ms", host_ms)
    monkeypatch.setattr(engines, "build_engine", lambda _config: None)
    monkeypatch.setattr(Engine, "load", load)
    plugin, cuda = Outcome(), Outcome()
    run_check("plugin", plugin, tmp_path)
    run_check("ort", cuda, tmp_path)
    assert plugin.failures == cuda.failures == []
    assert {"build_seconds", "logits", "trt-rtx, plugin", "passes"} <= set(plugin.figures)
    off, on = {"cuda_graphs": False}, {"cuda_graphs": True}
    own = [("engine-plugin", off), ("engine-ort", {}), ("engine-plugin", off), ("engine-plugin", on)]
    assert loaded == [*own, ("engine-ort", {"device": "cuda"})]
    assert list(cuda.figures) == ["ONNX Runtime, CUDA, fp32"]
