"""The check as a whole, its parts fake ones: none of them ends it, and none makes it last longer than it may."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.gpu_check.__main__ import main
from tests.gpu_check.child import run_child
from tests.gpu_check.parts import PARTS, share
from tests.gpu_check.report import Outcome, load_outcome

ROOT = Path(__file__).parents[2]
FAKES = "tests.gpu_check.fake_parts"
SECONDS = 9


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """One run: its exit code, JSON, output, seconds and directory."""
    work = tmp_path_factory.mktemp("check")
    options = ["--parts", "kernels,torch,timing,peer", "--work", str(work / "work"), "--json", str(work / "out.json")]
    capture, started = pytest.MonkeyPatch(), time.monotonic()
    lines: list[str] = []
    capture.setattr("builtins.print", lambda *words, **_: lines.append(" ".join(map(str, words))))
    try:
        code = main([*options, "--seconds", str(SECONDS)], worker=FAKES)
    finally:
        capture.undo()
    return code, json.loads((work / "out.json").read_text()), "\n".join(lines), time.monotonic() - started, work


def test_parts_that_fail_crash_or_hang_are_told_apart(checked):
    code, data, _, _, _ = checked
    parts = data["parts"]
    assert code == 1
    assert {name: part["status"] for name, part in parts.items()} == {
        "kernels": "ok",
        "torch": "FAILED",
        "timing": "FAILED",
        "peer": "FAILED",
    }
    assert parts["torch"]["reason"] == "RuntimeError: CUDA error: no more"
    assert parts["timing"]["reason"].startswith("timed out after ")
    assert parts["peer"]["reason"] == "crashed with signal 11 (SIGSEGV)"
    assert data["found"]["gpu"] == "GPU"


def test_what_a_part_had_found_is_kept(checked):
    _, data, out, _, _ = checked
    assert all(part["figures"] == {"figure": 1.0} for part in data["parts"].values())
    assert data["parts"]["kernels"]["notes"] == ["no graphs here"]
    for part in data["parts"]:
        assert re.search(rf"^{part} +1$", out, re.MULTILINE)


def test_the_last_lines_show_where_it_ended(checked):
    _, data, out, _, _ = checked
    lines = {name: "\n".join(part["last_lines"]) for name, part in data["parts"].items()}
    assert lines["kernels"] == ""
    assert "RuntimeError: CUDA error: no" in lines["torch"]
    assert "about to hang" in lines["timing"]
    for name in ("timing", "peer"):  # by the fault handler
        assert "fake_parts.py" in lines[name]
    assert "about to hang" in out


def test_the_whole_ends_in_time_and_leaves_no_process(checked):
    _, _, _, seconds, work = checked
    assert seconds < SECONDS
    assert not is_running(int((work / "work" / "left.pid").read_text()))


SAVED = (
    "from pathlib import Path; from tests.gpu_check.report import Outcome; Outcome(path=Path({!r}), done=True).save()"
)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("import sys; sys.exit(3)", "ended with exit code 3 before its work was done"),
        ("pass", "ended with exit code 0 before its work was done"),
        (f"{SAVED}; import os; os.abort()", "crashed with signal 6 (SIGABRT), its work done"),
    ],
)
def test_a_process_that_ends_otherwise_is_a_failure(tmp_path, script, reason):
    result = tmp_path / "result.json"
    command = [sys.executable, "-c", script.format(str(result))]
    ran = run_child("kernels", command, result=result, log=tmp_path / "log", seconds=60)
    assert (ran.status, ran.reason) == ("FAILED", reason)


def test_an_outcome_is_read_as_it_was_saved(tmp_path):
    outcome = Outcome(path=tmp_path / "result.json")
    outcome.table(["name", "value"]).add(["x", 0.123456])
    outcome.expect(False, "off by 3")
    outcome.record("ms", 1.5)
    read = load_outcome(tmp_path / "result.json")
    assert (read.figures, read.failures, read.done) == ({"ms": 1.5}, ["off by 3"], False)
    assert str(read.tables[0]) == str(outcome.tables[0])
    assert load_outcome(tmp_path / "absent.json") == Outcome()


def test_all_parts_together_take_no_more_than_there_is():
    left, seconds = list(PARTS), 450.0
    while left:
        taken = share(left[0], left, seconds)
        assert taken > 15
        seconds -= taken
        left.pop(0)
    assert seconds == pytest.approx(0)
    assert share("kernels", list(PARTS), -1.0) == 0


def test_the_process_that_watches_touches_no_gpu():
    script = "import sys, tests.gpu_check.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=dict(os.environ)).returncode == 0
