"""What is predicted is what happens, where a pass takes exactly what it was measured to take: on a clock of its own."""

import time
from dataclasses import dataclass, field

import pytest

from spec_trt import names
from spec_trt.profile.break_even import standing
from spec_trt.profile.cost_curve import CurveConfig, CurveTimer, measure_verify
from spec_trt.profile.generations import latency, record_methods
from spec_trt.runtime.costs import Costs, DraftCost
from spec_trt.runtime.generation import GenerationConfig
from tests.runtime.fake_engine import fake_engine
from tests.runtime.fake_heads import fake_heads
from tests.runtime.fake_session import FakeSession
from tests.runtime.fakes import FakeTarget

MODEL = FakeTarget(vocab=32, order=1)
METHODS = ["autoregressive", "ngram", "medusa", "eagle2"]


@dataclass
class Clock:
    """Stands still but for what takes time here."""

    now: float = 100.0

    def __call__(self):
        return self.now


@dataclass
class TimedFakeSession(FakeSession):
    """A pass takes 15 ms, and 3 for every node."""

    clock: Clock = field(default_factory=Clock)
    texts: bool = True

    def bind(self, inputs, outputs):
        return TimedFakeBinding(self, super().bind(inputs, outputs), inputs[names.INPUT_IDS].shape[1])


class TimedFakeBinding:
    def __init__(self, session, inner, nodes):
        self.session, self.inner, self.seconds = session, inner, 0.015 + 0.003 * nodes

    def run(self):
        if self.session.texts:
            self.inner.run()
        self.session.clock.now += self.seconds


def test_the_predicted_speedup_is_the_measured_one(tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)

    def drafted(prefix):
        clock.now += 0.0002
        return MODEL.next_token(prefix)

    session = TimedFakeSession(MODEL.next_token, vocab=MODEL.vocab, clock=clock)
    heads = fake_heads(drafted, vocab=MODEL.vocab)
    with fake_engine(tmp_path, MODEL, session=session, heads=heads) as engine:
        configs = {name: GenerationConfig(method=name, max_new_tokens=40) for name in METHODS}
        recordings = record_methods(engine, [[3, 1, 4, 1, 5], [2, 7]], configs, lambda items, _name: items)
        session.texts = False  # the curve's cache holds no text
        curve = CurveConfig(nodes=(1, 2, 8, 16), pasts=(8,), batches=(1,), rounds=2)
        verify = measure_verify(engine, curve, lambda items, _name: items, CurveTimer(engine, curve))
    assert [cost.ms for cost in verify] == pytest.approx([18, 21, 39, 63])
    found = {
        name: latency(name, {}, [recording for recording in recordings if recording.method == name]) for name in METHODS
    }
    draft = {name: DraftCost(pass_ms=one.phase_ms["draft"].mean) for name, one in found.items()}
    costs = Costs(machine="fake", threads=None, precision="fp32", verify=verify, draft=draft)
    for name, one in found.items():
        passes = [drafted for recording in recordings if recording.method == name for drafted in recording.passes]
        measured = one.tokens_per_s / found["autoregressive"].tokens_per_s
        assert standing(name, passes, costs).predicted_speedup == pytest.approx(measured), name
    assert found["autoregressive"].phase_ms["verify"].p99 == pytest.approx(18)
    assert found["eagle2"].phase_ms["draft"].mean > 0.4
    assert found["medusa"].tokens_per_s > 1.2 * found["autoregressive"].tokens_per_s
