"""What the README tells people to type works."""

import json
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from spec_trt.cli import main
from spec_trt.runtime import Engine, GenerationConfig

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


def python_blocks():
    """The programs, and the service, which would not end by itself."""
    programs = blocks("python")
    [service] = [block for block in programs if "serve_forever" in block]
    return [block for block in programs if block is not service], service


def test_the_python_blocks_run(directory, text_engine, capsys):
    (directory / "engine").symlink_to(text_engine)
    (directory / "prompts.jsonl").write_text("".join(json.dumps({"prompt": f"ab {n} ab"}) + "\n" for n in range(20)))
    programs, _ = python_blocks()
    assert len(programs) == 2
    for block in programs:
        exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out
    answers = [json.loads(line) for line in (directory / "answers.jsonl").read_text().splitlines()]
    assert [answer["prompt"] for answer in answers] == [f"ab {n} ab" for n in range(20)]
    assert all(set(answer) == {"prompt", "answer"} for answer in answers)


@pytest.fixture
def service(directory, text_engine):
    """The service, in a process of its own, and how to connect to it."""
    (directory / "engine").symlink_to(text_engine)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (directory / "service.py").write_text(python_blocks()[1].replace("port=8080", f"port={port}"))
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-X", "dev", "service.py"], stderr=subprocess.PIPE, text=True, cwd=directory
    )

    def connect():
        deadline = time.monotonic() + 60
        while process.poll() is None:
            try:
                return socket.create_connection(("127.0.0.1", port), timeout=30)
            except ConnectionRefusedError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        raise AssertionError(process.communicate()[1])

    yield process, connect
    process.kill()
    process.communicate()


def test_the_service_serves_several_and_ends_on_an_interrupt(service, text_engine):
    process, connect = service

    def ask(line):
        with connect() as client:
            client.sendall(line.encode())
            client.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: client.recv(4096), b"")).decode()

    with connect() as gone:
        gone.sendall(b"somebody who leaves\n")
    with ThreadPoolExecutor(6) as clients:
        answers = list(clients.map(ask, [f"ab {n}\n" for n in range(6)]))
    with Engine.load(text_engine) as engine:
        config = GenerationConfig(max_new_tokens=256)
        prompts = [engine.encode(f"ab {n}\n", chat=True) for n in range(6)]
        assert answers == [result.text for result in engine.generate(prompts, config)]
    assert ask("") == "the prompt is empty: expected some text\n"
    with connect() as waiting:
        waiting.sendall(b"somebody who is there at the end\n")
        assert waiting.recv(1)  # it is being answered
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert "KeyboardInterrupt\n" in error  # and what asyncio says of the client's cancelled task
    assert "Error" not in error.replace("CancelledError", "")
    assert "Warning" not in error


def test_ci_installs_and_tests_by_the_readmes_commands():
    script = (ROOT / ".ci" / "run").read_text()
    [install, test] = next(block for block in blocks("sh") if "pytest" in block).strip().split(" && ")
    assert install.removeprefix("pip install ") in script
    assert f"\n{test}\n" in script


def test_nothing_is_left_to_fill_in():
    assert "@@" not in README
