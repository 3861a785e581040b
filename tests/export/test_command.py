"""`spec-trt export` as a user meets it."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spec_trt.cli.export import command
from spec_trt.errors import BackendError, ConfigError
from spec_trt.export.config import STEPS
from spec_trt.manifest import load_manifest
from tests.conftest import FamilyPath
from tests.tokenizers import save_tokenizer

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "spec_trt", "export"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **changes}


def test_help_states_every_default():
    text = run("--help").stdout
    assert "MODEL is a local Hugging Face directory, a hub id, or a .gguf file." in text
    for part in ("[fp32|fp16|bf16]", "[default: fp32]", "[default: off]", "[default: compare]", "[default: refuse]"):
        assert part in " ".join(text.split())


def test_the_summary(family_model: FamilyPath, tmp_path: Path):
    result = run(family_model("llama"), tmp_path / "bundle")

    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("largest difference from PyTorch: ")
    assert lines[0].endswith("5 passes; allowed: 0.001)")
    assert lines[1] == "the model has no tokenizer files: text prompts won't work with this bundle, token ids will"
    for facts, line in zip(load_manifest(tmp_path / "bundle").files, lines[2:], strict=True):
        assert line.split() == [f"{facts.bytes:,}", str(tmp_path / "bundle" / facts.path)]
    assert "done" in result.stderr
    assert all(step in result.stderr for step in STEPS)


def test_without_check_and_with_tokenizer(family_model: FamilyPath, tmp_path: Path):
    model = save_tokenizer(Path(shutil.copytree(family_model("llama"), tmp_path / "model")))
    result = run(model, tmp_path / "bundle", "--no-check", "--dtype", "bf16")

    assert result.exit_code == 0
    assert "largest difference" not in result.stdout
    assert "no tokenizer" not in result.stdout
    assert load_manifest(tmp_path / "bundle").model.dtype == "bf16"


def test_an_existing_output_needs_force(family_model: FamilyPath, tmp_path: Path):
    (tmp_path / "bundle").mkdir()
    assert isinstance(run(family_model("llama"), tmp_path / "bundle").exception, ConfigError)
    assert run(family_model("llama"), tmp_path / "bundle", "--no-check", "--force").exit_code == 0
    load_manifest(tmp_path / "bundle", verify=True)


def test_a_missing_onnxruntime_is_told_before_anything_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setitem(sys.modules, "spec_trt.export.bundle", None)
    result = run("a model", tmp_path / "bundle")
    assert isinstance(result.exception, BackendError)
    assert result.stderr == ""
    assert isinstance(run("a model", tmp_path / "bundle", "--no-check").exception, ImportError)


def test_the_command_imports_nothing_heavy():
    script = (
        "import sys, spec_trt.cli.export\n"
        "print([name for name in ('torch', 'onnx', 'onnxruntime', 'transformers', 'numpy') if name in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"


def test_a_hub_id_from_the_local_cache(family_model: FamilyPath, tmp_path: Path):
    commit = "0123456789abcdef0123456789abcdef01234567"
    cache = tmp_path / "home" / "hub" / "models--someone--tiny-llama"
    shutil.copytree(family_model("llama"), cache / "snapshots" / commit)
    save_tokenizer(cache / "snapshots" / commit)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(commit)
    settings = environment(HF_HOME=str(tmp_path / "home"), HF_HUB_OFFLINE="1")

    done = subprocess.run(
        [*COMMAND, "someone/tiny-llama", tmp_path / "bundle", "--no-check"],
        env=settings,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    source = load_manifest(tmp_path / "bundle", verify=True).source
    assert (source.model, source.revision) == ("someone/tiny-llama", commit)
    assert (tmp_path / "bundle" / "tokenizer.json").is_file()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_nothing_left(number: signal.Signals, family_model: FamilyPath, tmp_path: Path):
    output = tmp_path / "out" / "bundle"
    process = subprocess.Popen(
        [*COMMAND, family_model("llama"), output], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    wait_for_staging(output.parent)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)

    assert process.returncode == 130
    assert stdout == b""
    assert b"Traceback" not in stderr
    assert list(output.parent.iterdir()) == []


def wait_for_staging(directory: Path) -> None:
    deadline = time.monotonic() + 60
    while not (directory.is_dir() and any(directory.iterdir())):
        assert time.monotonic() < deadline, "the export did not begin"
        time.sleep(0.02)
