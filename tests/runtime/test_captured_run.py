from spec_trt.runtime.captured_run import CapturedRun
from tests.runtime.fake_tensorrt import FakeStream


def test_the_first_run_is_an_ordinary_one_and_every_other_a_replay():
    stream = FakeStream()
    handles: list[int] = []
    run = CapturedRun(handles.append, stream)
    for _ in range(3):
        run.run()
    assert stream.calls == ["run", "capture", "replay", "replay"]
    assert handles == [stream.handle] * 3


def test_without_graphs_nothing_is_captured():
    stream = FakeStream()
    handles: list[int] = []
    run = CapturedRun(handles.append, stream, graphs=False)
    run.run()
    run.run()
    assert stream.calls == ["run", "run"]
    assert len(handles) == 2
