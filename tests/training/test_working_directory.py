import json
from pathlib import Path

import pytest

from spec_trt.errors import ConfigError
from spec_trt.training.working_directory import check_settings, claim, last_checkpoint, working_directory


def checkpoint(directory, step, state="{}"):
    made = directory / f"checkpoint-{step}"
    made.mkdir(parents=True)
    if state is not None:
        (made / "trainer_state.json").write_text(state)


@pytest.fixture
def working(tmp_path):
    return working_directory(tmp_path / "out")


def test_a_checkpoint_that_was_not_written_in_full_is_passed_over(tmp_path):
    for step, state in ((5, "{}"), (10, "{}"), (15, '{"global'), (20, None)):
        checkpoint(tmp_path, step, state)
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-10"
    assert last_checkpoint(tmp_path / "checkpoint-5") is None


def test_settings_matter_once_there_is_a_checkpoint(working):
    claim(working, {"seed": 1, "data": "a"})
    claim(working, {"seed": 2, "data": "a"})
    checkpoint(working, 4)
    claim(working, {"seed": 2, "data": "a"})
    check_settings(working, {"seed": 2})
    with pytest.raises(ConfigError, match="another seed: repeat its options to go on, or delete it"):
        check_settings(working, {"seed": 1})
    with pytest.raises(ConfigError, match="another data, more, seed"):
        claim(working, {"seed": 1, "data": "b", "more": 1})
    assert json.loads((working / "settings.json").read_text())["seed"] == 2


@pytest.mark.parametrize("content", [None, '{"seed": ', "[]", b"\xff"])
def test_checkpoints_that_nothing_describes_are_refused(working, content):
    checkpoint(working, 4)
    if content is not None:
        (working / "settings.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=r"missing or damaged.*to start anew"):
        claim(working, {"seed": 2})


def test_settings_are_written_whole_or_not_at_all(working, monkeypatch):
    write = Path.write_text

    def cut_short(self, text, **options):
        write(self, text[:5], **options)
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", cut_short)
        with pytest.raises(OSError, match="no space"):
            claim(working, {"seed": 2})
    assert not (working / "settings.json").exists()
    claim(working, {"seed": 2})
    assert [file.name for file in working.iterdir()] == ["settings.json"]


def test_a_second_process_writes_nothing(working, monkeypatch):
    claim(working, {"seed": 2})
    monkeypatch.setattr(Path, "write_text", lambda *_, **__: 1 / 0)
    claim(working, {"seed": 2})
    with pytest.raises(ZeroDivisionError):
        claim(working, {"seed": 3})
