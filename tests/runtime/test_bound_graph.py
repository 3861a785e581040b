import numpy as np
import pytest
import torch

from spec_trt.runtime import bound_graph
from spec_trt.runtime.bound_graph import BoundGraph
from spec_trt.runtime.staging import Staging

CPU = torch.device("cpu")


class Doubling:
    """A session that doubles what it is given, and counts its runs."""

    def __init__(self, device):
        self.device, self.runs, self.bound = device, 0, {}

    def bind(self, inputs, outputs):
        self.bound = {**inputs, **outputs}
        return self

    def run(self):
        self.runs += 1
        for name in ("ids", "features"):
            if name in self.bound:
                self.bound[f"{name}_out"].copy_(self.bound[name] * 2)


def bind(session):
    tensors = {"ids": torch.tensor([1, 2]), "features": torch.tensor([0.5])}
    outputs = {"ids_out": torch.zeros(2, dtype=torch.int64), "features_out": torch.zeros(1)}
    graph = BoundGraph(
        session,
        written={"ids": tensors["ids"]},
        read={"ids_out": outputs["ids_out"]},
        inputs={"features": tensors["features"]},
        outputs={"features_out": outputs["features_out"]},
    )
    return graph, tensors, outputs


def test_on_a_cpu_arrays_are_the_bound_tensors_own_memory():
    session = Doubling(CPU)
    graph, tensors, outputs = bind(session)
    assert all(session.bound[name] is tensor for name, tensor in {**tensors, **outputs}.items())
    graph.inputs["ids"][:] = [3, 4]
    assert tensors["ids"].tolist() == [3, 4]
    graph.run()
    assert graph.outputs["ids_out"].tolist() == [6, 8]
    assert np.shares_memory(graph.outputs["ids_out"], outputs["ids_out"].numpy())


@pytest.fixture
def waits(monkeypatch):
    """A GPU, as far as binding can tell: its memory is the CPU's, its stream counts who waits for it."""
    counted = []

    class Stream:
        def synchronize(self):
            counted.append("wait")

    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: Stream())
    monkeypatch.setattr(bound_graph, "Staging", lambda tensors, _device: Staging(tensors, CPU))
    return counted


class Gpu:
    type = "cuda"


def test_elsewhere_one_copy_goes_up_and_one_comes_down_and_the_host_waits_once(waits):
    session = Doubling(Gpu())
    graph, tensors, outputs = bind(session)
    assert session.bound["features"] is tensors["features"]
    assert session.bound["ids"] is not tensors["ids"]
    assert graph.inputs["ids"].tolist() == [1, 2]
    graph.inputs["ids"][:] = [3, 4]
    graph.run()
    assert graph.outputs["ids_out"].tolist() == [6, 8]
    assert outputs["features_out"].tolist() == [1]
    assert waits == ["wait"]


def test_where_the_host_has_no_part_it_does_not_wait(waits):
    session = Doubling(Gpu())
    features, out = torch.tensor([4.0]), torch.zeros(1)
    graph = BoundGraph(session, written={}, read={}, inputs={"features": features}, outputs={"features_out": out})
    graph.run()
    assert out.tolist() == [8]
    assert waits == []
