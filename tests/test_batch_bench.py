import json

import pytest

from spec_trt import batch_bench
from spec_trt.batch_bench import planned_answers, run_batch_bench
from spec_trt.batch_bench_report import BatchReport, BatchRound
from spec_trt.bench import WARM_UP_TOKENS, BenchConfig
from spec_trt.errors import ConfigError, PromptError
from spec_trt.prompts import PromptRecord
from spec_trt.runtime.engine import Engine
from spec_trt.runtime.generation import GenerationConfig
from spec_trt.runtime.sampling import Sampling
from spec_trt.runtime.scheduler import Scheduler
from spec_trt.runtime.stats import Stats
from tests.runtime.fake_engine import fake_engine, save_byte_tokenizer
from tests.runtime.fakes import FakeTarget

KEYS = {
    "tokens_per_s",
    "speedup",
    "seconds",
    "prefill_seconds",
    "emitted",
    "accept_length",
    "inter_token_latency_ms",
    "time_to_first_token_ms",
    "guarantee",
    "identical",
    "outputs",
    "near_ties",
}
RECORDS = [PromptRecord(turns=[text, "more"]) for text in ("ab ab ab", "cd cd cd", "xyz", "q", "ab cd")]


@pytest.fixture
def engine(tmp_path):
    save_byte_tokenizer(tmp_path)
    model = FakeTarget(vocab=128, order=2, period=3)
    with fake_engine(tmp_path, model, logits=model.logits) as engine:
        yield engine


def config(**options):
    return BenchConfig(**{"methods": {"ngram": {}, "eagle": {}}, "max_new_tokens": 12, **options})


def test_scores_every_method_at_every_batch_beside_one_at_a_time(engine):
    answers: list[None] = []
    report = run_batch_bench(engine, RECORDS, config(repeats=3), [2, 4], on_answer=lambda: answers.append(None))
    figures = json.loads(json.dumps(report.to_json()))["methods"]
    assert {name: list(by_batch) for name, by_batch in figures.items()} == {
        "autoregressive": ["1", "2", "4"],
        "ngram": ["2", "4"],
        "eagle": ["2", "4"],
    }
    assert len(answers) == planned_answers([2, 4], len(RECORDS), config(repeats=3)) == 7 * 5 * 3
    for score in [score for by_batch in figures.values() for score in by_batch.values()]:
        assert set(score) == KEYS
        assert (score["identical"], score["near_ties"], score["outputs"]) == (True, 0, 15)
        assert score["tokens_per_s"] > 0
        assert 0 < score["prefill_seconds"] < score["seconds"]
        assert 0 < score["time_to_first_token_ms"] < 1e3 * score["seconds"]
    assert figures["autoregressive"]["1"]["speedup"] == 1
    assert figures["autoregressive"]["4"]["emitted"] == 5 * 12
    assert figures["eagle"]["4"]["accept_length"] > 1


def test_so_many_requests_are_in_flight(engine, monkeypatch):
    settings, most = [], []

    class Watched(Scheduler):
        def __init__(self, engine, config):
            settings.append(config)
            most.append(0)
            super().__init__(engine, config)

        def submit(self, *args, **options):
            generation = super().submit(*args, **options)
            most[-1] = max(most[-1], self.in_flight)
            return generation

    monkeypatch.setattr(batch_bench, "Scheduler", Watched)
    run_batch_bench(engine, RECORDS, config(methods={}), [3])
    assert [setting.slots for setting in settings] == [1, 3]
    assert not any(setting.reuse_prefixes for setting in settings)
    assert most == [1, 3]


def test_table_has_a_row_per_method_and_batch(engine):
    text = run_batch_bench(engine, RECORDS, config(), [1, 4]).to_text()
    header, _, *rows = text.splitlines()
    assert header.startswith("5 prompts")
    assert header.split("in flight")[1].split("  ")[-1] == "identical"
    assert [row.split()[:2] for row in rows] == [
        [name, batch] for name in ("autoregressive", "ngram", "eagle") for batch in ("1", "4")
    ]
    assert all(row.endswith("yes") for row in rows)


def test_what_a_batch_changes_is_called_out(engine, monkeypatch):
    real = Engine.generate

    def lossy(self, prompt, config=None):
        result = real(self, prompt, config)
        if config.method == "ngram" and config.max_new_tokens > WARM_UP_TOKENS:
            result.token_ids[5] = 0
        return result

    monkeypatch.setattr(Engine, "generate", lossy)
    report = run_batch_bench(engine, RECORDS, config(), [2])
    assert report.to_json()["methods"]["ngram"]["2"]["identical"] is False
    assert [row.split()[-1] for row in report.to_text().splitlines()[2:]] == ["yes", "yes", "NO", "yes"]


def test_samples_what_plain_decoding_does_one_at_a_time(engine):
    drawn = Sampling(temperature=0.4, top_p=0.9, seed=3, draft_sampling=True)
    report = run_batch_bench(engine, RECORDS, config(sampling=drawn), [4])
    figures = {name: by_batch["4"] for name, by_batch in report.to_json()["methods"].items()}
    assert [figures[name]["identical"] for name in ("autoregressive", "ngram", "eagle")] == [True, True, None]
    assert report.to_text().startswith("5 prompts, temperature 0.4")
    assert report.to_text().endswith("in law")


def test_the_median_round_counts():
    report = BatchReport(prompts=1, max_new_tokens=4, sampling=Sampling())
    for seconds in (1.0, 5.0, 2.0):
        stats = Stats(emitted=10, gaps=[(0.4, 4), (0.1, 1), (0.6, 1)], first_token_seconds=[3.0, 1.0, 2.0])
        stats.seconds["prefill"] = 0.5
        report.score("autoregressive", 1).rounds.append(BatchRound(seconds=seconds, stats=stats))
    figures = report.to_json()["methods"]["autoregressive"]["1"]
    assert figures["tokens_per_s"] == pytest.approx(10 / 1.5)
    assert figures["inter_token_latency_ms"] == pytest.approx(100)
    assert figures["time_to_first_token_ms"] == pytest.approx(2000)
    assert BatchRound(seconds=1, stats=Stats()).token_ms == 0


def test_what_cant_be_run_is_refused(engine, monkeypatch):
    def refused(batches, match, error=ConfigError, records=RECORDS, **options):
        with pytest.raises(error, match=match):
            run_batch_bench(engine, records, config(**options), batches)

    refused([], "a batch must be at least 1, found none")
    refused([4, 0], "a batch must be at least 1, found 4, 0")
    refused([6], "6 requests in flight need as many prompts, found 5: add prompts")
    refused([2], "first turns, found all turns", all_turns=True)
    long = [*RECORDS, PromptRecord(turns=["x" * 600])]
    refused([2], "prompt 6 of 6 ", PromptError, long)
    monkeypatch.setattr(Engine, "max_batch", 4)
    refused([5], "the engine runs 4 sequences at once, found a batch of 5")


def test_a_fault_in_the_middle_ends_the_run_and_not_the_engine(engine, monkeypatch):
    real, asked = Engine.generate, []

    def failing(self, prompt, config=None):
        asked.append(prompt)
        if len(asked) == 12:
            raise PromptError("this one")
        return real(self, prompt, config)

    monkeypatch.setattr(Engine, "generate", failing)
    with pytest.raises(PromptError, match="this one"):
        run_batch_bench(engine, RECORDS, config(), [4])
    monkeypatch.undo()
    assert engine.generate([1, 2], GenerationConfig(max_new_tokens=3)).finish_reason == "length"
