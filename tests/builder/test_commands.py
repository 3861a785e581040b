"""`spec-trt build` and `spec-trt cost`."""

import json

import pytest

from spec_trt.cli import main


@pytest.fixture
def run(capsys):
    def run(*args):
        code: object = 0
        try:
            main([str(arg) for arg in args])
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_build_says_what_it_did(run, text_bundle, tmp_path):
    out = tmp_path / "engine"
    assert run("build", text_bundle, out)[:2] == (0, f"{out}: built\n")
    assert run("build", text_bundle, out)[:2] == (0, f"{out}: up to date, nothing to do\n")
    code, output, error = run("build", text_bundle, out, "--precision", "int8")
    assert (code, output) == (1, "")
    assert "error: " in error
    assert "--force" in error


def test_build_evaluates(run, text_bundle, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("a b c d " * 20)
    options = ("--precision", "int8", "--eval", texts)
    code, output, _ = run("build", text_bundle, tmp_path / "engine", *options)
    assert code == 0
    assert "perplexity of the engine" in output
    code, output, _ = run("build", text_bundle, tmp_path / "engine", *options, "--json")
    result = json.loads(output)
    assert result["built"] is False
    assert 0.8 < result["evaluation"]["perplexity_ratio"] < 1.2


@pytest.mark.parametrize("option", [("--backend", "abacus"), ("--precision", "int3")])
def test_unknown_choices_are_refused(run, text_bundle, tmp_path, option):
    code, output, error = run("build", text_bundle, tmp_path / "engine", *option)
    assert (code, output) == (2, "")
    assert option[1] in error
