import dataclasses
import json

import pytest

from spec_trt.errors import ConfigError, DataError, SpecTrtError
from spec_trt.manifest import HeadFacts
from spec_trt.runtime.drafters.heads import Heads
from spec_trt.runtime.generation import GenerationConfig
from spec_trt.runtime.sampling import Sampling
from spec_trt.tune.config import TuneConfig
from spec_trt.tune.held_out import DEFAULT, PLAIN, measure_held_out, split_prompts
from spec_trt.tune.replay import replay
from spec_trt.tune.trace import record_traces
from spec_trt.tune.tree_file import tree_file
from spec_trt.tune.tune import chosen_methods, planned_generations, tune_trees
from tests.runtime.fake_engine import fake_engine
from tests.runtime.fake_heads import fake_heads
from tests.runtime.fakes import FakeTarget
from tests.tune.trees import flat_costs

MODEL = FakeTarget(vocab=40, order=2, period=3)
PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9], [1, 5, 9], [2, 2, 3], [7, 1], [30, 31], [11, 12, 13]]
WIDE = [(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 0, 0)]
SAMPLED = Sampling(temperature=1.0, seed=3, repetition_penalty=1.2)


@pytest.fixture
def engine(tmp_path):
    """Its EAGLE head is always right, its Medusa heads mostly wrong: they see one token alone."""
    return with_heads(fake_engine(tmp_path, MODEL))


@pytest.fixture
def unsure_engine(tmp_path):
    """One whose heads are sometimes right, whatever it is sampled by."""
    return with_heads(fake_engine(tmp_path, MODEL, logits=MODEL.logits))


def with_heads(engine):
    heads = fake_heads(MODEL.next_token, vocab=MODEL.vocab)
    facts = HeadFacts(medusa=heads.required_medusa().facts, eagle=heads.required_eagle().facts)
    engine.manifest = dataclasses.replace(engine.manifest, heads=facts)
    return engine


@pytest.mark.parametrize("method", ["medusa", "eagle"])
@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED])
def test_a_replayed_tree_gains_what_it_gains_when_it_is_run(unsure_engine, method, sampling):
    run = GenerationConfig(method=method, sampling=sampling, max_new_tokens=24)
    traces = record_traces(unsure_engine, PROMPTS[:3], WIDE, run)
    assert [trace.prompt_tokens for trace in traces] == [3, 2, 4]
    for tree in (WIDE, [(0,)], [(1,), (0,), (0, 0)]):
        with tree_file(tree) as file:
            with_tree = dataclasses.replace(run, options={"tree": file})
            stats = [unsure_engine.generate(prompt, with_tree).stats for prompt in PROMPTS[:3]]
        replayed = replay(traces, tree)
        assert (len(replayed.begun), replayed.tokens) == (sum(each.passes for each in stats), 3 * 24)
        assert len(tree) < 8 or len(replayed.begun) < 3 * 24


def test_what_is_always_right_is_recorded_so_as_far_as_it_was_drafted(engine):
    done = []
    run = GenerationConfig(method="eagle", max_new_tokens=20)
    traces = record_traces(engine, PROMPTS[:2], WIDE, run, on_trace=lambda: done.append(1))
    assert len(done) == 2
    for trace in traces:
        assert [attempt.ranks for attempt in trace.attempts] == [(0,) * min(4, 19 - position) for position in range(20)]
        assert not any(attempt.failed for attempt in trace.attempts)


def test_every_fourth_prompt_is_held_out():
    fitted, held_out = split_prompts(PROMPTS)
    assert held_out == [PROMPTS[3], PROMPTS[7]]
    assert fitted == [*PROMPTS[:3], *PROMPTS[4:7]]


def test_a_head_that_is_always_right_gets_a_chain_and_one_that_never_is_a_single_node(engine):
    done = []
    config = TuneConfig(max_new_tokens=24, repeats=1, max_nodes=5)
    report = tune_trees(
        engine, PROMPTS, flat_costs(level_ms=0.1), ["eagle", "medusa"], config, on_generation=lambda: done.append(1)
    )
    eagle, medusa = report.methods["eagle"], report.methods["medusa"]
    assert eagle.tuned is not None
    assert list(eagle.tuned.paths) == [(0,) * depth for depth in range(1, 6)]
    assert eagle.tuned.held_out.stats.accept_length > 4
    assert eagle.tuned.accept_length > eagle.default.accept_length
    assert eagle.tuned.accept_length * eagle.tuned.pass_ratio > eagle.default.accept_length * eagle.default.pass_ratio
    assert medusa.default.held_out.stats.accept_length < 2
    assert eagle.positions == 6 * 24
    assert len(done) == planned_generations(len(PROMPTS), 2, config) == 2 * (6 + 3 * 2)
    assert eagle.plain.near_ties == eagle.tuned.held_out.near_ties == 0


def test_the_report_says_everything_in_json_and_in_words(engine):
    config = TuneConfig(max_new_tokens=16, repeats=1)
    report = tune_trees(engine, PROMPTS[:4], flat_costs(), ["eagle"], config)
    figures = json.loads(json.dumps(report.to_json()))
    assert figures["prompts"] == {"fitted": 3, "held_out": 1}
    found = figures["methods"]["eagle"]
    assert found["better"] == (found["gain"] > 1)
    assert not found["written"]
    for tree in (found["default"], found["tuned"]):
        assert tree["nodes"] == len(tree["tree"])
        assert tree["depth"] == max(map(len, tree["tree"]))
        assert tree["speedup_by_costs"] == pytest.approx(
            tree["accept_length"] * tree["predicted_speedup"] / tree["predicted_accept_length"]
        )
        assert tree["speedup_low"] <= tree["speedup"] <= tree["speedup_high"]
    text = report.to_text()
    for words in ("eagle: 3 prompts fitted to, 1 held out", "default", "tuned", "only 48 tokens were looked at"):
        assert words in text
    assert f"{found['gain']:.3f} times" in text


def test_the_default_tree_is_kept_where_it_is_the_best_one(engine):
    head = engine.new_heads().eagle
    head.facts = dataclasses.replace(head.facts, tree=[[0] * depth for depth in range(1, 6)])
    engine.manifest = dataclasses.replace(engine.manifest, heads=HeadFacts(eagle=head.facts))
    engine.new_heads = lambda: Heads(eagle=head)
    engine._heads = engine.new_heads()
    report = tune_trees(engine, PROMPTS, flat_costs(), ["eagle"], TuneConfig(max_new_tokens=20, max_nodes=5, repeats=1))
    found = report.methods["eagle"]
    assert found.tuned is None
    assert (found.gain, found.is_better) == (1.0, False)
    assert report.to_json()["methods"]["eagle"]["tuned"] is None
    assert "it stays" in report.to_text()


def test_an_output_that_is_not_plain_decodings_is_a_fault(engine, monkeypatch):
    real = engine.generate

    def generate(prompt, config=None):
        result = real(prompt, config)
        return dataclasses.replace(result, token_ids=[39] * 3) if config.method == "eagle" else result

    monkeypatch.setattr(engine, "generate", generate)
    runs = {PLAIN: GenerationConfig(max_new_tokens=8), DEFAULT: GenerationConfig(method="eagle", max_new_tokens=8)}
    with pytest.raises(SpecTrtError, match="not plain decoding's"):
        measure_held_out(engine, PROMPTS[:1], runs, repeats=1)


def test_too_few_prompts_and_costs_without_the_method_are_refused(engine):
    with pytest.raises(DataError, match="expected 4 or more, found 3"):
        tune_trees(engine, PROMPTS[:3], flat_costs(), ["eagle"], TuneConfig())
    with pytest.raises(ConfigError, match=r"none of eagle's drafts .*profile ENGINE --save"):
        tune_trees(engine, PROMPTS, flat_costs(["medusa"]), ["medusa", "eagle"], TuneConfig())


def test_methods_are_those_with_a_head(engine):
    assert chosen_methods(engine.manifest, TuneConfig()) == ["medusa", "eagle"]
    assert chosen_methods(engine.manifest, TuneConfig(methods=["eagle"])) == ["eagle"]
    bare = dataclasses.replace(engine.manifest, heads=HeadFacts(medusa=engine.manifest.heads.medusa))
    with pytest.raises(ConfigError, match="has one for medusa, found eagle"):
        chosen_methods(bare, TuneConfig(methods=["eagle"]))
    with pytest.raises(ConfigError, match="has one for no method"):
        chosen_methods(dataclasses.replace(bare, heads=HeadFacts()), TuneConfig())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"methods": ["ngram"]}, r"static tree can be tuned \(medusa, eagle\): found ngram"),
        ({"methods": ["eagle2", "eagle"]}, "found eagle2"),
        ({"methods": ["nonsense"]}, "found nonsense"),
        ({"methods": ["eagle", "eagle"]}, "once"),
        ({"sampling": Sampling(temperature=1, draft_sampling=True)}, "draft_sampling"),
        ({"sampling": Sampling(temperature=1, acceptance="typical")}, "typical"),
        ({"max_nodes": 0}, "max_nodes must be at least 1"),
        ({"max_new_tokens": 0}, "max_new_tokens must be"),
        ({"repeats": 0}, "repeats must be"),
    ],
)
def test_what_makes_no_sense_is_refused(change, words):
    with pytest.raises(ConfigError, match=words):
        TuneConfig(**change)
