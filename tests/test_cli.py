import contextlib
import io
import json
import os
import shutil
import signal
import time
from dataclasses import fields

import click
import pytest

from spec_trt import __version__
from spec_trt.cli import cli, main
from spec_trt.runtime.costs import Costs, DraftCost, VerifyCost
from spec_trt.runtime.drafters import METHODS
from spec_trt.runtime.engine import Engine
from spec_trt.runtime.generation import GenerationConfig
from spec_trt.runtime.sampling import Sampling
from tests.runtime.fake_engine import fake_engine, save_byte_tokenizer
from tests.runtime.fake_heads import fake_heads
from tests.runtime.fake_session import FakeSession
from tests.runtime.fakes import FakeTarget


@pytest.fixture
def run(capsys):
    """Run the command in this process: exit code, stdout, stderr."""

    def run(*args):
        code: int | str | None = 0
        try:
            main([str(arg) for arg in args])
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        '{"turns": ["aba aba aba", "again"], "category": "letters"}\n{"turns": ["121 121 121"], "category": "digits"}\n'
    )
    return path


def fails(result, *parts):
    """One line on stderr that names the fault, exit code 1, nothing on stdout."""
    code, out, err = result
    assert (code, out) == (1, "")
    [line] = [line for line in err.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in err
    for part in parts:
        assert part in line


def test_every_command_and_option_has_help():
    assert set(cli.commands) == {
        "export",
        "build",
        "generate",
        "bench",
        "profile",
        "tune",
        "inspect",
        "demo",
        "train",
    }
    for command in cli.commands.values():
        assert command.help
        for parameter in command.params:
            assert not isinstance(parameter, click.Option) or parameter.help, (command.name, parameter.name)


def test_version_and_unknown_things(run):
    assert run("--version") == (0, f"spec-trt, version {__version__}\n", "")
    code, _, err = run("levitate")
    assert code == 2
    assert "No such command" in err


@pytest.mark.parametrize("command", ["generate", "bench", "profile"])
def test_help_lists_methods_and_their_options(run, command):
    code, out, _ = run(command, "--help")
    assert code == 0
    assert all(name in out for name in METHODS)
    assert "num_draft_tokens=" in out
    assert "ngram_size=" in out


@pytest.mark.parametrize("method", [name for name in METHODS if METHODS[name].head is None])
def test_generate_streams_text_and_sums_up(run, text_engine, method):
    args = ("generate", text_engine, "--prompt", "aba aba", "--max-new-tokens", 24)
    plain = json.loads(run(*args, "--json")[1])
    code, out, err = run(*args, "--method", method)
    assert code == 0
    assert out == plain["text"] + "\n"
    assert "accept length" in err
    assert "passes" in err


def test_generate_warns_of_a_head_that_is_never_right(run, tmp_path, monkeypatch):
    save_byte_tokenizer(tmp_path)
    model = FakeTarget(vocab=128, order=2)
    wrong = fake_heads(lambda prefix: (model.next_token(prefix) + 64) % 128, vocab=128)
    engine = fake_engine(tmp_path, model, heads=wrong)
    monkeypatch.setattr(Engine, "load", lambda *_args, **_options: engine)
    args = ("generate", tmp_path, "--prompt", "ab", "--max-new-tokens", 30)
    code, _, err = run(*args, "--method", "eagle")
    assert code == 0
    assert err.splitlines()[-1].startswith("warning: eagle drafted ")
    assert "warning" not in run(*args, "--method", "ngram")[2]


def test_generate_json_holds_the_result(run, text_engine):
    code, out, _ = run("generate", text_engine, "--prompt", "hello", "--chat", "--max-new-tokens", 9, "--json")
    result = json.loads(out)
    assert code == 0
    assert set(result) == {"text", "token_ids", "finish_reason", "guarantee", "stats"}
    assert result["finish_reason"] in {"length", "eos"}
    assert {"tokens_per_s", "accept_length", "passes", "inter_token_latency_ms"} <= set(result["stats"])
    assert result["stats"]["time_to_first_token_ms"] > 0


def test_log_probs_are_part_of_the_json(run, text_engine):
    args = ("generate", text_engine, "--prompt", "hello", "--max-new-tokens", 9, "--log-probs")
    code, out, _ = run(*args, "--json")
    result = json.loads(out)
    assert code == 0
    assert len(result["log_probs"]) == len(result["token_ids"]) > 0
    assert all(number < 0 for number in result["log_probs"])
    fails(run(*args), "--log-probs are part of the JSON object", "add it")


def test_generate_samples_by_seed(run, text_engine):
    def text(*args):
        code, out, _ = run("generate", text_engine, "--prompt", "aba", "--max-new-tokens", 12, "--json", *args)
        assert code == 0
        return json.loads(out)["token_ids"]

    drawn = ("--temperature", 1, "--top-k", 50, "--top-p", 0.95, "--min-p", 0.001, "--repetition-penalty", 1.1)
    first = text(*drawn, "--seed", 5)
    assert first == text(*drawn, "--seed", 5, "--method", "lookahead") != text(*drawn, "--seed", 6)
    assert text("--temperature", 0, "--seed", 5) == text()


def test_generate_says_what_is_not_lossless(run, tmp_path, monkeypatch):
    save_byte_tokenizer(tmp_path)
    model = FakeTarget(vocab=128, order=2)
    engine = fake_engine(tmp_path, model, logits=model.logits)
    monkeypatch.setattr(Engine, "load", lambda *_args, **_options: engine)
    args = ("generate", tmp_path, "--prompt", "ab", "--max-new-tokens", 9, "--temperature", 1)
    code, out, err = run(*args, "--method", "medusa", "--acceptance", "typical", "--json")
    assert (code, json.loads(out)["guarantee"]) == (0, "not lossless")
    assert err.endswith(", NOT LOSSLESS\n")
    code, out, err = run(*args, "--method", "eagle", "--draft-sampling", "--json")
    assert (code, json.loads(out)["guarantee"]) == (0, "in law")
    assert "LOSSLESS" not in err


def test_sampling_options_have_the_defaults_of_the_python_api():
    for command in ("generate", "bench"):
        options = {parameter.name: parameter for parameter in cli.commands[command].params}
        for item in fields(Sampling):
            assert options[item.name].default == item.default


def test_generate_reads_stdin_and_takes_method_options(run, text_engine, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"abab"), encoding="utf-8"))
    args = ("generate", text_engine, "--prompt", "-", "--method", "ngram", "--max-new-tokens", 8, "--json")
    code, out, _ = run(*args, "-o", "num_draft_tokens=2", "-o", "min_ngram=1")
    assert code == 0
    assert json.loads(out)["stats"]["nodes"] <= 3 * json.loads(out)["stats"]["passes"]


def test_generate_refuses_bad_input_in_one_line(run, text_engine):
    def generate(*args, prompt="x"):
        return run("generate", text_engine, "--prompt", prompt, *args)

    fails(generate(prompt=""), "empty")
    fails(generate("--method", "warp"), "warp", "autoregressive")
    fails(generate("--method", "eagle"), "needs an EAGLE head", "spec-trt export MODEL BUNDLE --eagle PATH")
    fails(generate("--method", "ngram", "-o", "speed=9"), "speed", "num_draft_tokens")
    fails(generate("--method", "ngram", "-o", "num_draft_tokens=-1"), "num_draft_tokens", "-1")
    fails(generate("-o", "nothing"), "NAME=VALUE")
    fails(generate("--max-new-tokens", 0), "max_new_tokens")
    fails(generate("--stop", ""), "stop string")
    fails(generate("--temperature", -1), "temperature must be a number at least 0: found -1.0")
    fails(generate("--top-p", 0), "top_p", "above 0 and at most 1")
    fails(generate("--draft-sampling", "--method", "eagle2"), "draft_sampling", "(eagle)", "found eagle2")
    fails(generate("--acceptance", "typical"), "typical acceptance is for medusa", "found autoregressive")
    fails(generate(prompt="x" * 500), "500 tokens", "context holds 256")
    code, _, err = generate("--warp", "9")
    assert code == 2
    assert "No such option" in err


def test_engines_that_are_not_whole_are_refused(run, text_engine, text_bundle, tmp_path):
    def generate(engine):
        return run("generate", engine, "--prompt", "x")

    fails(generate(tmp_path / "none"), "is not a directory")
    fails(generate(tmp_path), "has no manifest.json")
    fails(generate(text_bundle), "is a bundle", "spec-trt build")
    broken = tmp_path / "broken"
    shutil.copytree(text_engine, broken)
    largest = max((path for path in broken.rglob("*.onnx*")), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-10])
    fails(generate(broken), largest.name, "damaged or cut short")
    largest.write_bytes(largest.read_bytes() + b"x" * 10)
    assert generate(broken)[0] == 0
    fails(run("generate", broken, "--prompt", "x", "--verify"), largest.name, "sha256 differs")
    (broken / "manifest.json").write_text("{")
    fails(generate(broken), "manifest.json is damaged")


def test_bench_prints_tables_and_json(run, text_engine, prompts):
    args = ("bench", text_engine, "--prompts", prompts, "--methods", "ngram,lookahead", "--max-new-tokens", 12)
    code, out, _ = run(*args)
    assert code == 0
    assert out.startswith("2 prompts")
    assert "NO" not in out
    code, out, _ = run(*args, "--json", "--turns", "all", "-o", "ngram.num_draft_tokens=3")
    report = json.loads(out)
    assert report["sampling"]["temperature"] == 0
    assert list(report["methods"]) == ["autoregressive", "ngram", "lookahead"]
    assert set(report["categories"]) == {"letters", "digits"}
    assert all(score["identical"] for score in report["methods"].values())
    assert report["methods"]["ngram"]["nodes_per_pass"] <= 4
    code, out, _ = run("bench", text_engine, "--prompts", prompts, "--limit", 1, "--max-new-tokens", 4, "--json")
    assert list(json.loads(out)["methods"]) == Engine.load(text_engine).methods


def test_bench_with_requests_in_flight(run, text_engine, prompts):
    args = ("bench", text_engine, "--prompts", prompts, "--methods", "ngram", "--max-new-tokens", 8, "--batch")
    code, out, err = run(*args, "1,2")
    assert code == 0
    assert out.startswith("2 prompts       in flight")
    assert "8/8" in err
    assert "NO" not in out
    code, out, _ = run(*args, 2, "--json", "--repeats", 3)
    report = json.loads(out)
    assert {name: list(by_batch) for name, by_batch in report["methods"].items()} == {
        "autoregressive": ["1", "2"],
        "ngram": ["2"],
    }
    fails(run(*args, "many"), "--batch takes numbers like 1,4,16, found 'many'")
    fails(run(*args, "0"), "a batch must be at least 1")
    fails(run(*args, "1,3"), "3 requests in flight need as many prompts, found 2")
    fails(run(*args, "2", "--turns", "all"), "first turns")


def test_bench_refuses_bad_input_in_one_line(run, text_engine, prompts, tmp_path):
    fails(run("bench", text_engine, "--prompts", tmp_path / "none"), "cannot read")
    fails(run("bench", text_engine, "--prompts", prompts, "--methods", "warp"), "warp")
    fails(run("bench", text_engine, "--prompts", prompts, "--draft-sampling"), "draft_sampling is for eagle")
    fails(run("bench", text_engine, "--prompts", prompts, "-o", "num_draft_tokens=3"), "METHOD.NAME=VALUE")


def test_inspect_describes_bundles_and_engines(run, text_engine, text_bundle):
    code, out, _ = run("inspect", text_bundle)
    assert code == 0
    assert "bundle of" in out
    assert "past_key.0" in out
    assert "past_key.1" not in out
    code, out, _ = run("inspect", text_engine, "--verify")
    assert "engine (ort" in out
    code, out, _ = run("inspect", text_engine, "--json")
    assert json.loads(out)["engine"]["backend"] == "ort"
    fails(run("inspect", text_engine / "none"), "is not a directory")


def test_an_interrupt_is_not_a_traceback(run, monkeypatch):
    def interrupted(**_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "main", interrupted)
    assert run("inspect", "x") == (130, "", "interrupted\n")


def test_an_interrupt_ends_a_generation_under_way(run, tmp_path, monkeypatch):
    save_byte_tokenizer(tmp_path)
    model = FakeTarget(vocab=128, order=2)
    passes: list[int] = []

    def interrupting(prefix):
        passes.append(len(prefix))
        if len(passes) == 20:
            signal.raise_signal(signal.SIGINT)  # as Ctrl-C: for the main thread, whichever raises it
        time.sleep(0.001)
        return model.next_token(prefix)

    session = FakeSession(interrupting, vocab=model.vocab)
    with fake_engine(tmp_path, model, session=session) as engine:
        monkeypatch.setattr(Engine, "load", lambda *_args, **_options: engine)
        code, out, err = run("generate", tmp_path, "--prompt", "ab", "--max-new-tokens", 400)
        assert (code, err.strip()) == (130, "interrupted")
        assert len(out) < 300
        done = len(passes)
        assert len(engine.generate([1, 2], GenerationConfig(max_new_tokens=3)).token_ids) == 3
        assert len(passes) < done + 50  # the rest of the interrupted one was given up


def test_a_reader_that_leaves_is_no_traceback(run, text_engine, monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)
    stdout = os.fdopen(writing, "w")
    monkeypatch.setattr("sys.stdout", stdout)
    assert run("generate", text_engine, "--prompt", "ab", "--max-new-tokens", 9) == (1, "", "")
    monkeypatch.undo()
    with contextlib.suppress(BrokenPipeError):
        stdout.close()


def test_budgets(run, text_engine, prompts, tmp_path):
    engine = shutil.copytree(text_engine, tmp_path / "engine")
    generate = ("generate", engine, "--prompt", "ab ab ab", "--method", "ngram", "--max-new-tokens", 8)
    expected = run(*generate)[1]
    fails(run(*generate, "--budget", "auto"), "needs to know what passes cost here", f"profile {engine} --save")
    for bad in ("0", "much", "1.5"):
        fails(run(*generate, "--budget", bad), f"auto, fixed or a number of nodes from 1 on: found '{bad}'")
    passes = [VerifyCost(batch=1, nodes=nodes, past=64, ms=10 + nodes) for nodes in (1, 8)]
    drafts = {"ngram": DraftCost(pass_ms=0.1)}
    Costs(machine="a test", threads=1, precision="fp32", verify=passes, draft=drafts).save(engine)
    for budget in ("auto", "fixed", "2"):
        assert run(*generate, "--budget", budget)[:2] == (0, expected)
    bench = ("bench", engine, "--prompts", prompts, "--methods", "ngram", "--max-new-tokens", 8, "--json")
    names = ["autoregressive", "ngram@auto", "ngram@2"]
    for options in ((), ("--batch", 2)):
        code, out, _ = run(*bench, "--budget", "auto,2", *options)
        assert (code, list(json.loads(out)["methods"])) == (0, names)
