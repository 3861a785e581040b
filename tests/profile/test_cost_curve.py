import threading
import time
from dataclasses import replace
from itertools import count

import pytest

from spec_trt import names
from spec_trt.manifest import TensorRtFacts
from spec_trt.profile import cost_curve
from spec_trt.profile.cost_curve import CurveConfig, CurveTimer, measure_prefill, measure_verify, sizes
from spec_trt.profile.draft_costs import HeadParts, draft_costs, measure_heads
from spec_trt.runtime.costs import DraftCost
from spec_trt.runtime.draft_model import DraftModel
from spec_trt.runtime.drafters.heads import Heads
from spec_trt.runtime.medusa_model import MedusaModel
from tests.runtime.fake_engine import fake_engine
from tests.runtime.fake_heads import FakeHead, fake_heads
from tests.runtime.fake_session import fake_facts
from tests.runtime.fakes import FakeTarget
from tests.test_manifest import make_engine_facts

MODEL = FakeTarget(vocab=32, order=2)


def idle_heads(run=lambda _inputs, _outputs: None):
    """Heads whose graphs do nothing: what is measured is no text."""
    facts = fake_heads(MODEL.next_token, vocab=MODEL.vocab)
    assert facts.medusa is not None
    assert facts.eagle is not None
    idle, target = FakeHead(run), fake_facts(vocab=MODEL.vocab)
    return Heads(
        medusa=MedusaModel(idle, facts.medusa.facts, target), eagle=DraftModel(idle, facts.eagle.facts, target)
    )


@pytest.fixture(autouse=True)
def quickly_settled(monkeypatch):
    monkeypatch.setattr(cost_curve, "_SETTLING_S", 0.001)


@pytest.fixture
def session():
    """A base graph that does nothing but count its runs."""
    return FakeHead(lambda _inputs, _outputs: None)


@pytest.fixture
def engine(tmp_path, session):
    with fake_engine(tmp_path, MODEL, max_positions=256, session=session, heads=idle_heads()) as engine:
        yield engine


def measure(engine, config):
    return measure_verify(engine, config, lambda items, _name: items, CurveTimer(engine, config))


def test_every_size_is_measured(engine):
    config = CurveConfig(nodes=(4, 1), pasts=(0, 64), batches=(2, 1), rounds=2)
    found = measure(engine, config)
    assert [(cost.batch, cost.past, cost.nodes) for cost in found] == [
        (batch, past, nodes) for batch in (1, 2) for past in (0, 64) for nodes in (1, 4)
    ]
    assert all(cost.ms > 0 for cost in found)


def test_what_has_no_room_is_left_out(engine):
    asked = CurveConfig(nodes=(1, 64), pasts=(64, 192, 193, 1024), batches=(1, 16))
    found = sizes(engine, asked)
    assert [(size.batch, size.past) for size in found] == [(1, 64), (1, 192), (16, 64), (16, 192)]
    assert found[0].nodes == [1, 64]
    assert found[-1].nodes == [1]  # 16 trees of 64 nodes are no decoding any more
    assert [size.past for size in sizes(engine, replace(asked, pasts=(4096,), batches=(1,)))] == [192]


def test_an_engine_of_fixed_sizes_is_measured_within_them(engine):
    facts = TensorRtFacts(
        attention="native",
        plugin_version=None,
        compute_capabilities=["8.9"],
        max_length=200,
        max_batch=2,
        max_nodes=16,
        prefill_chunk=64,
        profiles={},
    )
    engine.manifest = replace(engine.manifest, engine=make_engine_facts(backend="trt", tensorrt=facts))
    found = sizes(engine, CurveConfig(pasts=(64, 1024), batches=(1, 4, 8)))
    assert [(size.batch, size.past) for size in found] == [(1, 64), (2, 64)]
    assert all(size.nodes == [1, 2, 4, 8, 16] for size in found)


def test_the_time_for_a_size_is_limited(engine):
    config = CurveConfig(nodes=(1,), pasts=(8,), batches=(1,), rounds=10**9, seconds=0.05)
    assert len(measure(engine, config)) == 1


def test_rounds_that_were_run_meanwhile_count(engine, session):
    config = CurveConfig(nodes=(1,), pasts=(8,), batches=(1,), rounds=5)
    timer = CurveTimer(engine, config)
    for _ in range(5):
        timer.round()
    before = len(session.windows)
    assert len(measure_verify(engine, config, lambda items, _name: items, timer)) == 1
    assert len(session.windows) == before


def test_passes_are_timed_where_and_as_decoding_runs_them(tmp_path, monkeypatch):
    """Off the main thread, and those of one node behind many of their kind."""
    nodes, threads = [], set()

    def run(inputs, _outputs):
        nodes.append(inputs[names.INPUT_IDS].shape[1] if names.INPUT_IDS in inputs else 0)
        threads.add(threading.current_thread())

    clock = count()
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock) / 1000)
    monkeypatch.setattr(cost_curve, "_SETTLING_S", 0.1)
    with fake_engine(tmp_path, MODEL, max_positions=256, session=FakeHead(run), heads=idle_heads(run)) as engine:
        timer = CurveTimer(engine, CurveConfig(nodes=(1, 4, 16), pasts=(8,), batches=(1,), rounds=2))
        timer.round()
        del nodes[:]
        timer.round()
        assert nodes == sorted(nodes)
        assert nodes.count(1) > 30
        assert nodes.count(4) == nodes.count(16) == 3
        measure_prefill(engine, 100, repeats=1)
        measure_heads(engine, past=20, rounds=1)
    assert threading.main_thread() not in threads


def test_sizes_beyond_the_first_slow_one_are_left_out(engine):
    config = CurveConfig(nodes=(1, 4, 8, 16), pasts=(8,), batches=(1,), rounds=1, slow_s=0.0)
    assert [cost.nodes for cost in measure(engine, config)] == [1]


def test_a_prompt_is_read_at_some_rate(engine):
    assert measure_prefill(engine, 100, repeats=1) > 0
    assert measure_prefill(engine, 10**6, repeats=1) > 0  # no longer than the context


def test_heads_are_measured_in_parts(engine):
    found = measure_heads(engine, past=20, rounds=2)
    assert set(found) == {"medusa", "eagle"}
    assert all(parts.fixed_ms > 0 for parts in found.values())
    assert found["eagle"].level_ms > 0


def test_a_method_has_its_heads_parts():
    parts = {"eagle": HeadParts(fixed_ms=1.0, level_ms=0.5, node_ms=0.1, switch_ms=0.25)}
    found = draft_costs({"ngram": 0.2, "eagle": 3.0, "eagle2": 2.0, "medusa": 1.0}, parts)
    assert found["ngram"] == DraftCost(pass_ms=0.2)
    assert found["medusa"] == DraftCost(pass_ms=1.0)
    assert found["eagle2"] == DraftCost(pass_ms=2.25, fixed_ms=1.25, level_ms=0.5, node_ms=0.1)
