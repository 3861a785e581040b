import pytest

from spec_trt.runtime.captured_run import CapturedRun
from tests.runtime.fake_tensorrt import FakeStream


def test_the_first_run_is_an_ordinary_one_and_every_other_a_replay():
    stream = FakeStream()
    handles: list[int] = []
    run = CapturedRun(handles.append, stream)
    for _ in range(3):
        run.run()
    assert stream.calls == ["run", "capture", "replay", "replay"]
    assert handles == [stream.handle] * 2


def test_without_graphs_nothing_is_captured():
    stream = FakeStream()
    handles: list[int] = []
    run = CapturedRun(handles.append, stream, graphs=False)
    run.run()
    run.run()
    assert stream.calls == ["run", "run"]
    assert len(handles) == 2


def test_a_run_may_be_captured_when_it_is_asked_for():
    stream = FakeStream()
    run = CapturedRun(lambda _handle: None, stream, graphs=False)
    run.run()
    run.capture()
    run.run()
    assert stream.calls == ["run", "capture", "replay"]


def test_a_failed_capture_is_an_error_and_runs_stay_ordinary():
    stream = FakeStream()

    def work(_handle):
        if stream.recorded is not None:
            raise RuntimeError("CUDA error")

    run = CapturedRun(work, stream)
    with pytest.raises(RuntimeError, match="CUDA error"):
        run.run()
    run.run()
    assert stream.calls == ["run", "capture", "run"]
