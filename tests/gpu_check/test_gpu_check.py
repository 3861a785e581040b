"""The parts of the check that need no GPU."""

import json

import pytest
import torch

from tests.gpu_check.__main__ import main
from tests.gpu_check.found import CUDA_PROVIDER, Found, find, skip_reason
from tests.gpu_check.kernel_timing import Case, cases
from tests.gpu_check.kernels import relative_error
from tests.gpu_check.lossless import PLAIN, MethodResult, report_methods
from tests.gpu_check.options import choose_backend, files_of, parse
from tests.gpu_check.parts import PARTS
from tests.gpu_check.report import Outcome, PartResult, exit_code, plain_rates, summary, write_json
from tests.gpu_check.timing import sets_needed

MACHINE = Found(
    gpu="GPU", capability="8.9", versions={"triton": "3", "onnxruntime": "1"}, tensorrt=["trt-rtx"], providers=["CPU"]
)


def changed(**changes):
    return Found(
        **{"gpu": "GPU", "capability": "8.9", "versions": MACHINE.versions, "tensorrt": MACHINE.tensorrt} | changes
    )


def reason(part, found=MACHINE, *, backend="trt-rtx", dtype="fp16", prepared=True):
    return skip_reason(part, found, backend=backend, dtype=dtype, prepared=prepared)


@pytest.mark.parametrize("part", PARTS)
def test_every_part_runs_on_a_machine_that_has_everything(part):
    assert reason(part, changed(providers=[CUDA_PROVIDER]), prepared=part != "prepare") is None


@pytest.mark.parametrize("part", PARTS)
def test_nothing_runs_without_a_gpu(part):
    assert reason(part, changed(gpu=None)) == "no GPU (PyTorch finds none)"


OLD = changed(capability="7.5")


@pytest.mark.parametrize(
    ("part", "found", "given", "expected"),
    [
        ("kernels", changed(versions={}), {}, "Triton is not installed"),
        ("torch", changed(versions={}), {}, "Triton is not installed"),
        ("timing", changed(versions={}), {}, "Triton is not installed"),
        ("plugin", MACHINE, {"backend": None}, "no TensorRT library: pip install spec-trt[trt] or"),
        ("native", changed(versions={"triton": "3"}), {}, "ONNX Runtime, whose result"),
        ("plugin", MACHINE, {"prepared": False}, "the part `prepare` made no files for it"),
        ("prepare", MACHINE, {}, "the files are there already"),
        ("prepare", MACHINE, {"prepared": False, "backend": None}, "nothing here would need the files"),
        ("ort", MACHINE, {}, "ONNX Runtime has no CUDA here"),
        ("torch", OLD, {"dtype": "bf16"}, "bf16 needs compute capability 8.0, found 7.5: choose --dtype fp16"),
        ("native", OLD, {"dtype": "bf16"}, "bf16 needs compute capability 8.0"),
    ],
)
def test_a_part_is_skipped_by_what_it_lacks(part, found, given, expected):
    assert (reason(part, found, **given) or "").startswith(expected)


def test_bf16_is_no_reason_to_skip_where_there_is_a_way():
    assert reason("kernels", OLD, dtype="bf16") is None
    assert reason("torch", OLD, dtype="fp16") is None
    assert reason("torch", MACHINE, dtype="bf16") is None


def test_what_is_found_here_is_said():
    found = find()
    assert found.versions["torch"] == torch.__version__
    assert (found.gpu is None) == (not torch.cuda.is_available())
    assert any("PyTorch" in line or "torch" in line for line in found.lines)


def test_one_library_is_checked_at_a_time():
    both = changed(tensorrt=["trt", "trt-rtx"])
    assert choose_backend(None, both) == "trt"
    assert choose_backend("trt-rtx", both) == "trt-rtx"
    assert choose_backend("trt", MACHINE) is None
    assert choose_backend(None, changed(tensorrt=[])) is None


def outcomes():
    good = Outcome(figures={"ms": 1.5, "plain_tokens_per_s": 30.0}, notes=["a note"])
    bad = Outcome(figures={"plain_tokens_per_s": 10.0})
    bad.expect(False, "off by 3")
    bad.expect(True, "never seen")
    return [
        PartResult(part="torch", status="ok", reason="", seconds=1.0, outcome=good),
        PartResult(part="peer", status="FAILED", reason="off by 3", outcome=bad, last_lines=["the end"]),
        PartResult(part="ort", status="skipped", reason="no GPU"),
    ]


def test_the_summary_says_how_each_part_ended():
    lines = summary(outcomes()).splitlines()
    assert lines[2].split()[:2] == ["torch", "ok"]
    assert "FAILED" in lines[3]
    assert lines[3].endswith("off by 3")
    assert lines[4].endswith("no GPU")


def test_rates_are_beside_pytorchs_own():
    [_, _, torch_line, peer_line] = str(plain_rates(outcomes())).splitlines()
    assert torch_line.split() == ["torch", "30", "3"]
    assert peer_line.split() == ["peer", "10", "1"]
    assert plain_rates(outcomes()[2:]) is None


def test_the_exit_code_tells_failed_from_not_run():
    results = outcomes()
    assert exit_code(results) == 1
    assert exit_code([results[0], results[2]]) == 0
    assert exit_code([results[2]]) == 2
    assert exit_code([]) == 2


def test_everything_is_in_the_json(tmp_path):
    path = tmp_path / "out.json"
    write_json(path, MACHINE, {"tokens": 3}, outcomes())
    data = json.loads(path.read_text())
    assert data["found"]["gpu"] == "GPU"
    assert data["settings"] == {"tokens": 3}
    assert data["parts"]["torch"]["figures"]["ms"] == 1.5
    assert data["parts"]["peer"]["failures"] == ["off by 3"]
    assert data["parts"]["peer"]["last_lines"] == ["the end"]
    assert data["parts"]["ort"]["status"] == "skipped"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--parts", "kernels,nothing"], "no part 'nothing'"), (["--dtype", "fp32"], "invalid choice")],
)
def test_bad_arguments_are_refused(arguments, words, capsys):
    with pytest.raises(SystemExit):
        parse(arguments)
    assert words in capsys.readouterr().err


def test_parts_run_in_their_own_order():
    assert parse(["--parts", "timing,kernels"]).parts == ["kernels", "timing"]
    assert parse([]).parts == list(PARTS)


def test_files_are_prepared_once_both_are_whole(tmp_path):
    files = files_of(parse(["--dtype", "bf16"]), tmp_path)
    for path in (tmp_path / "bundle-bf16", tmp_path / "engine-ort"):
        assert not files.prepared
        path.mkdir()
        (path / "manifest.json").touch()
    assert files.prepared
    assert not files_of(parse(["--dtype", "bf16", "--bundle", "elsewhere"]), tmp_path).prepared


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_command_says_so_and_writes_its_json(tmp_path, capsys):
    path = tmp_path / "gpu_check.json"
    assert main(["--json", str(path)]) == 2
    out = capsys.readouterr().out
    assert "found: no GPU" in out
    assert out.count("skipped") >= len(PARTS)
    assert {part["reason"] for part in json.loads(path.read_text())["parts"].values()} == {
        "no GPU (PyTorch finds none)"
    }


def test_the_timed_sizes_are_the_issues():
    sizes = list(cases())
    assert len(sizes) == 24
    case = Case(past=4096, nodes=8, batch=2)
    keys, queries = 2 * 2 * 8 * (4096 + 8) * 128, 2 * 2 * 32 * 8 * 128
    assert case.nbytes == 2 * (keys + queries)


def test_operands_are_larger_than_the_cache_unless_there_were_too_many():
    assert sets_needed(10, 100) == 20
    assert sets_needed(1000, 100) == 1
    assert sets_needed(1, 10**9) == 64


def test_an_error_that_is_no_number_is_infinite():
    import numpy as np

    assert relative_error(np.array([1.0, 2.0]), np.array([1.0, 2.0])) == 0
    assert relative_error(np.array([np.nan, 2.0]), np.array([1.0, 2.0])) == float("inf")


def test_a_method_that_differs_is_a_failure():
    outcome, plain, other = Outcome(), MethodResult(), MethodResult(different=1, near_ties=2)
    for result in (plain, other):
        result.stats.record_pass(nodes=1, accepted=0)
        result.stats.seconds["verify"] = 0.5
    report_methods(outcome, "engine", {PLAIN: plain, "ngram": other})
    assert outcome.failures == ["engine: ngram differs from plain decoding on 1 prompts"]
    assert outcome.figures["engine"]["ngram"]["speedup"] == 1
    assert "NO" in str(outcome.tables[0])
