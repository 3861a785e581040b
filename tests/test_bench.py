import json
from dataclasses import replace

import pytest

from spec_trt import bench
from spec_trt.bench import BenchConfig, run_bench
from spec_trt.bench_report import BASELINE
from spec_trt.errors import ConfigError
from spec_trt.prompts import PromptRecord
from spec_trt.runtime.sampling import Sampling
from tests.runtime.fake_engine import fake_engine, save_byte_tokenizer
from tests.runtime.fake_heads import fake_heads
from tests.runtime.fakes import FakeTarget

KEYS = {
    "tokens_per_s",
    "accept_length",
    "passes",
    "draft_ms",
    "verify_ms",
    "other_ms",
    "speedup",
    "guarantee",
    "identical",
    "near_ties",
}
RECORDS = [
    PromptRecord(turns=["ab ab ab", "second"], category="writing"),
    PromptRecord(turns=["cd cd cd"], category="writing"),
    PromptRecord(turns=["xyz"], category="math"),
]
METHODS = {"ngram": {"num_draft_tokens": 3}, "lookahead": {}}


@pytest.fixture
def engine(tmp_path):
    save_byte_tokenizer(tmp_path)
    return fake_engine(tmp_path, FakeTarget(vocab=128, order=2, period=3))


def test_scores_every_method_beside_the_baseline(engine):
    done = []
    report = run_bench(
        engine,
        RECORDS,
        BenchConfig(methods=METHODS, max_new_tokens=20),
        on_answer=lambda *answer: done.append(answer),
    )
    figures = json.loads(json.dumps(report.to_json()))
    assert list(figures["methods"]) == [BASELINE, "ngram", "lookahead"]
    assert list(figures["categories"]) == ["writing", "math"]
    for scores in [figures["methods"], *figures["categories"].values()]:
        assert all(set(score) >= KEYS for score in scores.values())
        assert all(score["identical"] and score["near_ties"] == 0 for score in scores.values())
    assert figures["methods"][BASELINE]["speedup"] == 1
    assert figures["methods"][BASELINE]["accept_length"] == 1
    assert figures["methods"][BASELINE]["passes"] == 60
    assert figures["methods"]["ngram"]["accept_length"] > 1
    assert len(done) == 3


@pytest.fixture
def prompts(engine, monkeypatch):
    """The prompts that an engine was given, as text."""
    given = []
    real = engine.generate

    def generate(prompt, config=None):
        given.append(bytes(prompt).decode())
        return real(prompt, config)

    monkeypatch.setattr(engine, "generate", generate)
    return given


def test_later_turns_see_plain_decodings_answers(engine, prompts):
    answers = []
    run_bench(
        engine,
        RECORDS[:1],
        BenchConfig(methods={}, max_new_tokens=4, all_turns=True),
        on_answer=lambda results, _: answers.append(results[BASELINE].text),
    )
    first, second = dict.fromkeys(prompts)
    answer = answers[0]
    assert first == "<ab ab ab>:"
    assert second == f"<ab ab ab><{answer}><second>:"


def test_raw_prompts_skip_the_template(engine, prompts):
    run_bench(engine, RECORDS[1:2], BenchConfig(methods={}, max_new_tokens=4, chat=False))
    assert set(prompts) == {"cd cd cd"}


def test_a_lossy_method_is_called_out(engine, monkeypatch):
    real = engine.generate

    def lossy(prompt, config=None):
        result = real(prompt, config)
        if config is not None and config.method == "ngram":
            result.token_ids[5] = 0
        return result

    monkeypatch.setattr(engine, "generate", lossy)
    report = run_bench(engine, RECORDS[:2], BenchConfig(methods=METHODS, max_new_tokens=20))
    figures = report.to_json()["methods"]
    assert [figures[name]["identical"] for name in (BASELINE, "ngram", "lookahead")] == [True, False, True]
    row = next(line for line in report.to_text().splitlines() if line.startswith("ngram"))
    assert row.endswith("NO")


def test_the_median_run_counts(engine, monkeypatch):
    speeds = iter([1.0, 9.0, 3.0])
    real = engine.generate

    def timed(prompt, config=None):
        result = real(prompt, config)
        result.stats.seconds = dict.fromkeys(result.stats.seconds, 0.0)
        result.stats.seconds["verify"] = result.stats.emitted / next(speeds)
        return result

    monkeypatch.setattr(bench, "_warm_up", lambda *_: None)
    monkeypatch.setattr(engine, "generate", timed)
    report = run_bench(engine, RECORDS[:1], BenchConfig(methods={}, repeats=3, max_new_tokens=4))
    assert report.scores[BASELINE].stats.tokens_per_s == pytest.approx(3.0)


def test_a_wrong_repeat_is_seen_though_its_budget_is_auto(engine, monkeypatch):
    runs, real = iter(range(99)), engine.generate

    def sometimes_wrong(prompt, config=None):
        result = real(prompt, replace(config, budget="fixed"))
        if config.budget == "auto" and next(runs) == 1:
            result = replace(result, token_ids=[1 - result.token_ids[0] % 2, *result.token_ids[1:]])
        return result

    monkeypatch.setattr(bench, "_warm_up", lambda *_: None)
    monkeypatch.setattr(engine, "generate", sometimes_wrong)
    config = BenchConfig(methods={"ngram": {}}, budgets=["auto"], repeats=3, max_new_tokens=4)
    assert run_bench(engine, RECORDS[:1], config).to_json()["methods"]["ngram"]["identical"] is False


def test_table_names_prompts_and_near_ties(engine):
    report = run_bench(engine, RECORDS, BenchConfig(methods={}, max_new_tokens=4))
    report.scores[BASELINE].near_ties = 2
    text = report.to_text()
    assert text.startswith("3 prompts")
    assert "yes, 2 near ties" in text
    assert "\nwriting " in text


def test_acceptance_is_listed_by_depth(engine):
    report = run_bench(engine, RECORDS[:1], BenchConfig(methods={"eagle": {}}, max_new_tokens=21, chat=False))
    shares = report.to_json()["methods"]["eagle"]["accepted_by_depth"]
    assert shares == [0.8, 0.8, 0.8, 0.8]  # of 5 passes all but the last had room
    table = report.to_text().split("\n\n")[-1]
    assert table.startswith("passes that accepted at least")
    assert table.splitlines()[-1].split() == ["eagle", *(f"{share:.2f}" for share in shares)]
    assert "passes that accepted" not in run_bench(engine, RECORDS, BenchConfig(methods={}, max_new_tokens=4)).to_text()


def test_a_head_that_is_never_right_is_warned_of(tmp_path):
    save_byte_tokenizer(tmp_path)
    model = FakeTarget(vocab=128, order=2)
    wrong = fake_heads(lambda prefix: (model.next_token(prefix) + 64) % 128, vocab=128)
    engine = fake_engine(tmp_path, model, heads=wrong)
    report = run_bench(
        engine, RECORDS, BenchConfig(methods={"eagle": {}, "eagle2": {}, "ngram": {}}, max_new_tokens=20)
    )
    assert [warning.split()[:2] for warning in report.to_json()["warnings"]] == [
        ["warning:", "eagle"],
        ["warning:", "eagle2"],
    ]
    assert report.to_text().endswith(report.warnings[-1])
    assert all(score.different == 0 for score in report.scores.values())


def sampled(directory, **sampling):
    """The report of every method on an engine whose target is not certain."""
    save_byte_tokenizer(directory)
    model = FakeTarget(vocab=128, order=2, period=3)
    engine = fake_engine(directory, model, logits=model.logits)
    chosen = Sampling(temperature=0.4, top_p=0.9, repetition_penalty=1.1, seed=3, **sampling)
    methods: dict[str, dict[str, object]] = {name: {} for name in engine.methods}
    return run_bench(engine, RECORDS, BenchConfig(methods=methods, max_new_tokens=20, sampling=chosen, repeats=2))


def test_every_method_samples_what_plain_decoding_does(tmp_path):
    report = sampled(tmp_path)
    figures = report.to_json()
    assert figures["sampling"]["temperature"] == 0.4
    for score in figures["methods"].values():
        assert (score["identical"], score["guarantee"], score["near_ties"]) == (True, "token for token", 0)
    assert figures["methods"]["eagle"]["accept_length"] > 1.1
    assert report.to_text().startswith("3 prompts, temperature 0.4")


def test_what_is_not_plain_samplings_output_says_so(tmp_path):
    report = sampled(tmp_path, draft_sampling=True, acceptance="typical")
    figures = report.to_json()["methods"]
    compared = {name: (score["identical"], score["guarantee"]) for name, score in figures.items()}
    assert compared.pop("eagle") == (None, "in law")
    assert compared.pop("medusa") == (None, "not lossless")
    assert set(compared.values()) == {(True, "token for token")}
    rows = {line.split()[0]: line for line in report.to_text().split("\n\n")[0].splitlines()}
    assert rows["eagle"].endswith("in law")
    assert rows["medusa"].endswith("NOT LOSSLESS")
    assert rows["eagle2"].endswith("yes")


def test_sampling_that_no_method_takes_is_refused():
    drawn, typical = Sampling(draft_sampling=True), Sampling(acceptance="typical")
    with pytest.raises(
        ConfigError, match="draft_sampling is for eagle: found the methods eagle2, medusa; add that one"
    ):
        BenchConfig(methods={"eagle2": {}, "medusa": {}}, sampling=drawn)
    with pytest.raises(ConfigError, match="typical acceptance is for medusa: found the methods none"):
        BenchConfig(methods={}, sampling=typical)


def test_repeats_must_be_positive():
    with pytest.raises(ConfigError, match="repeats must be at least 1"):
        BenchConfig(methods={}, repeats=0)
