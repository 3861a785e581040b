"""What is predicted is what happens, where a pass takes exactly what it was measured to take."""

import time
from dataclasses import dataclass

import pytest

from spec_trt import names
from spec_trt.profile.break_even import standing
from spec_trt.profile.cost_curve import CurveConfig, CurveTimer, measure_verify
from spec_trt.profile.generations import latency, record_methods
from spec_trt.runtime.costs import Costs, DraftCost
from spec_trt.runtime.generation import GenerationConfig
from tests.runtime.fake_engine import fake_engine
from tests.runtime.fake_session import FakeSession
from tests.runtime.fakes import FakeTarget

MODEL = FakeTarget(vocab=32, order=1)
METHODS = ["autoregressive", "ngram", "medusa", "eagle2"]
MARGIN = 0.1


@dataclass
class SlowSession(FakeSession):
    """A pass takes 15 ms, and 3 for every node."""

    texts: bool = True

    def bind(self, inputs, outputs):
        return SlowBinding(self, super().bind(inputs, outputs), inputs[names.INPUT_IDS].shape[1])


class SlowBinding:
    def __init__(self, session, inner, nodes):
        self.session, self.inner, self.seconds = session, inner, 0.015 + 0.003 * nodes

    def run(self):
        ready = time.perf_counter() + self.seconds
        if self.session.texts:
            self.inner.run()
        time.sleep(max(ready - time.perf_counter(), 0))


def test_the_predicted_speedup_is_the_measured_one(tmp_path):
    session = SlowSession(MODEL.next_token, vocab=MODEL.vocab)
    with fake_engine(tmp_path, MODEL, session=session) as engine:
        configs = {name: GenerationConfig(method=name, max_new_tokens=24) for name in METHODS}
        recordings = record_methods(engine, [[3, 1, 4, 1, 5], [2, 7]], configs, lambda items, _name: items)
        session.texts = False  # the curve's cache holds no text
        curve = CurveConfig(nodes=(1, 2, 8, 16), pasts=(8,), batches=(1,), rounds=3)
        verify = measure_verify(engine, curve, lambda items, _name: items, CurveTimer(engine, curve))
    latencies = {
        name: latency(name, {}, [recording for recording in recordings if recording.method == name]) for name in METHODS
    }
    draft = {name: DraftCost(pass_ms=one.phase_ms["draft"].mean) for name, one in latencies.items()}
    costs = Costs(machine="fake", threads=None, precision="fp32", verify=verify, draft=draft)
    for name, one in latencies.items():
        passes = [drafted for recording in recordings if recording.method == name for drafted in recording.passes]
        measured = one.tokens_per_s / latencies["autoregressive"].tokens_per_s
        found = standing(name, passes, costs, measured_speedup=measured)
        assert found.predicted_speedup == pytest.approx(measured, rel=MARGIN), name
    assert latencies["medusa"].tokens_per_s > 1.2 * latencies["autoregressive"].tokens_per_s
