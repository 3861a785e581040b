"""What the README tells people to type works."""

import re
import shlex
from pathlib import Path

import pytest
import torch

from spec_trt.cli import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands(language="sh"):
    return [line for block in blocks(language) for line in block.splitlines() if line.startswith("spec-trt ")]


@pytest.fixture
def directory(tmp_path, monkeypatch):
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "ab ab ab"}\n')
    lines = '{"text": "Text number %d, which is long enough to learn from."}\n'
    (tmp_path / "conversations.jsonl").write_text("".join(lines % number for number in range(60)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_commands_of_the_tour_run_in_order(directory, text_bundle, capsys):
    stages = ["export", "build", "generate", "bench", "train", "train", "export", "build", "generate"]
    assert [shlex.split(line)[1] for line in commands()] == stages
    for line in commands():
        model = str(text_bundle.parent / "model")
        main([model if word == "MODEL" else word for word in shlex.split(line, comments=True)[1:]])
    assert (directory / "engine" / "manifest.json").is_file()
    assert "autoregressive" in capsys.readouterr().out


@pytest.mark.usefixtures("directory")
def test_the_commands_for_a_gpu_run_up_to_where_one_is_needed(text_bundle, capsys):
    pytest.importorskip("tensorrt_rtx")
    lines = [shlex.split(line)[1:] for line in commands("bash")]
    assert [line[0] for line in lines] == ["export", "build", "inspect", "generate"]
    for line in lines[:-1]:
        main([str(text_bundle.parent / "model") if word == "MODEL" else word for word in line])
    assert "TreeAttention" in capsys.readouterr().out
    if not torch.cuda.is_available():
        with pytest.raises(SystemExit):
            main(lines[-1])
        assert "GPU" in capsys.readouterr().err


def test_the_python_blocks_run(directory, text_engine, capsys):
    (directory / "engine").symlink_to(text_engine)
    assert blocks("python")
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out


def test_ci_installs_and_tests_by_the_readmes_commands():
    script = (ROOT / ".ci" / "run").read_text()
    [install, test] = next(block for block in blocks("sh") if "pytest" in block).strip().split(" && ")
    assert install.removeprefix("pip install ") in script
    assert f"\n{test}\n" in script


def test_nothing_is_left_to_fill_in():
    assert "@@" not in README
