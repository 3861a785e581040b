"""The order of what is asked of CUDA, on a machine that has none: PyTorch's objects have stand-ins that take notes."""

import gc
from contextlib import contextmanager, nullcontext

import pytest
import torch

from spec_trt.errors import BackendError
from spec_trt.runtime.cuda_stream import CudaStream, on_device, require_gpu


class Stream:
    cuda_stream = 11

    def __init__(self, name, notes):
        self.name, self._notes = name, notes

    def wait_stream(self, other):
        self._notes.append(f"{self.name} waits for {other.name}")

    def synchronize(self):
        self._notes.append(f"host waits for {self.name}")


class Graph:
    def __init__(self, notes, *, broken=False):
        self._notes, self._broken = notes, broken

    def capture_begin(self, *, capture_error_mode):
        self._notes.append(f"begin {capture_error_mode}")

    def capture_end(self):
        self._notes.append("end")
        if self._broken:
            raise RuntimeError("the capture is invalid")

    def replay(self):
        self._notes.append("replay")


@pytest.fixture
def cuda(monkeypatch):
    notes: list[str] = []
    caller = Stream("caller", notes)

    @contextmanager
    def current(stream):
        notes.append(f"on {stream.name}")
        yield
        notes.append(f"off {stream.name}")

    monkeypatch.setattr(torch.cuda, "Stream", lambda _device: Stream("own", notes))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: caller)
    monkeypatch.setattr(torch.cuda, "stream", current)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: notes.append(f"host waits for {device}"))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: Graph(notes))
    return notes


def test_work_is_done_between_the_callers_own(cuda):
    stream = CudaStream(torch.device("cuda", 0))
    assert stream.handle == 11
    stream.run(lambda: cuda.append("work"))
    assert cuda == ["own waits for caller", "on own", "work", "off own", "caller waits for own"]


def test_a_capture_is_replayed_where_all_other_work_is_done(cuda):
    collecting = []
    replay = CudaStream(torch.device("cuda", 0)).capture(lambda: collecting.append(gc.isenabled()))
    assert cuda == ["host waits for own", "on own", "begin thread_local", "end", "off own"]
    cuda.clear()
    replay()
    assert cuda == ["own waits for caller", "on own", "replay", "off own", "caller waits for own"]
    assert collecting == [False]
    assert gc.isenabled()


def test_work_that_fails_in_a_capture_ends_it_and_is_what_is_raised(cuda, monkeypatch):
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: Graph(cuda, broken=True))

    def work():
        raise BackendError("no kernel")

    with pytest.raises(BackendError, match="no kernel"):
        CudaStream(torch.device("cuda", 0)).capture(work)
    assert cuda[-1] == "end"
    assert gc.isenabled()


def test_a_capture_that_cuda_finds_invalid_is_an_error(cuda, monkeypatch):
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: Graph(cuda, broken=True))
    with pytest.raises(RuntimeError, match="the capture is invalid"):
        CudaStream(torch.device("cuda", 0)).capture(lambda: None)
    assert cuda[-1] == "end"
    assert gc.isenabled()


def test_to_synchronize_is_to_wait_for_both_streams(cuda):
    CudaStream(torch.device("cuda", 0)).synchronize()
    assert cuda == ["host waits for caller", "host waits for own"]


def test_to_settle_is_to_wait_for_all_that_any_thread_has_asked_of_the_gpu(cuda):
    CudaStream(torch.device("cuda", 1)).settle()
    assert cuda == ["host waits for cuda:1"]


def test_a_gpu_is_the_threads_own_for_a_while(cuda, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext(cuda.append(f"on {device}")))
    with CudaStream(torch.device("cuda", 1)).on_device(), on_device(torch.device("cpu")):
        pass
    assert cuda == ["on cuda:1"]


@pytest.mark.parametrize(("build", "words"), [(None, "a build without CUDA"), ("13.0", r"built for CUDA 13\.0")])
def test_a_machine_without_a_gpu_is_told_what_its_pytorch_is(monkeypatch, build, words):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", build)
    with pytest.raises(BackendError, match=f"no NVIDIA GPU is within reach .*{words}"):
        require_gpu()
