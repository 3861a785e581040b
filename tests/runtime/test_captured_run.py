import pytest

from spec_trt.errors import BackendError
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


def breaking(stream, error):
    def work(_handle):
        if stream.recorded is not None:
            raise error

    return work


@pytest.mark.parametrize("error", [BackendError("no"), RuntimeError("CUDA error")])
def test_what_cannot_be_captured_runs_as_it_is(error):
    stream = FakeStream()
    reasons: list[Exception] = []
    run = CapturedRun(breaking(stream, error), stream, on_refusal=reasons.append)
    for _ in range(3):
        run.run()
    assert stream.calls == ["run", "capture", "run", "run"]
    assert reasons == [error]


def test_a_failed_capture_is_an_error_where_no_one_takes_its_reason():
    stream = FakeStream()
    with pytest.raises(RuntimeError, match="CUDA error"):
        CapturedRun(breaking(stream, RuntimeError("CUDA error")), stream).run()


def test_an_error_of_the_work_itself_is_no_refusal():
    def work(_handle):
        raise RuntimeError("out of order")

    with pytest.raises(RuntimeError, match="out of order"):
        CapturedRun(work, FakeStream(), on_refusal=lambda _error: None).run()


def test_a_library_that_says_no_is_not_tried():
    stream = FakeStream()
    reasons: list[Exception] = []
    run = CapturedRun(lambda _handle: None, stream, capturable=lambda: False, on_refusal=reasons.append)
    run.run()
    run.run()
    assert stream.calls == ["run", "run"]
    assert [str(reason) for reason in reasons] == ["the library says that they can't be captured"]
