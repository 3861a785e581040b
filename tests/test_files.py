import errno
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from spec_trt.errors import ConfigError, SpecTrtError
from spec_trt.files import atomic_directory, sha256


def test_appears_whole(tmp_path):
    target = tmp_path / "deep" / "out"
    with atomic_directory(target) as staging:
        (staging / "a").write_text("x")
        assert not target.exists()
    assert [path.name for path in target.iterdir()] == ["a"]
    assert [path.name for path in target.parent.iterdir()] == ["out"]


def test_an_existing_target_is_kept_unless_replaced(tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    (target / "old").touch()
    with pytest.raises(ConfigError, match="exists already"), atomic_directory(target):
        pass
    with pytest.raises(ConfigError, match="never replaced"), atomic_directory(target, replace=True):
        pass
    (target / "manifest.json").touch()
    with atomic_directory(target, replace=True) as staging:
        (staging / "new").touch()
    assert [path.name for path in target.iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("stop", [ValueError("x"), KeyboardInterrupt()])
def test_whatever_ends_it_early_leaves_nothing_and_the_old_target(tmp_path, stop):
    target = tmp_path / "out"
    target.mkdir()
    (target / "manifest.json").touch()

    def write_half():
        with atomic_directory(target, replace=True) as staging:
            (staging / "half").touch()
            raise stop

    with pytest.raises(type(stop)):
        write_half()
    assert [path.name for path in target.iterdir()] == ["manifest.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_a_killed_process_left_is_removed_and_no_one_elses(tmp_path):
    target = tmp_path / "out"
    left, others = tmp_path / ".out.0123abcd", [tmp_path / ".out.notes", tmp_path / ".other.0123abcd"]
    with atomic_directory(target) as under_way:
        for directory in (left, *others):
            directory.mkdir()
        for directory in (left, under_way, *others):
            os.utime(directory, (0, 0))
        with atomic_directory(tmp_path / "out") as second:
            assert set(tmp_path.iterdir()) == {under_way, second, *others}
        target.rmdir()
    assert set(tmp_path.iterdir()) == {target, *others}


def test_a_full_disk_is_one_clear_error(tmp_path):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with (
        pytest.raises(SpecTrtError, match="No space left on device; nothing was kept"),
        atomic_directory(tmp_path / "out"),
    ):
        raise full
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_parent_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot write to"), atomic_directory(tmp_path / "file" / "out"):
        pass


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_killed_process_leaves_nothing(tmp_path, sent):
    program = textwrap.dedent(f"""
        import sys, time
        from pathlib import Path
        from spec_trt.files import atomic_directory
        with atomic_directory(Path({str(tmp_path)!r}) / "out") as staging:
            (staging / "half").write_text("x")
            print("ready", flush=True)
            time.sleep(60)
    """)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(sent)
        assert process.wait(timeout=30) != 0
    assert list(tmp_path.iterdir()) == []


def test_sha256(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_failed_swap_puts_the_old_target_back(tmp_path, monkeypatch):
    target = tmp_path / "out"
    target.mkdir()
    (target / "manifest.json").touch()
    rename = Path.rename

    def fail_once(self, to):
        if Path(to) == target and self.name != "replaced":
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", fail_once)
    with pytest.raises(SpecTrtError, match="busy"), atomic_directory(target, replace=True):
        pass
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "manifest.json"]
