import json

import pytest

from spec_trt import bench
from spec_trt.bench import BASELINE, BenchConfig, run_bench
from spec_trt.errors import ConfigError
from spec_trt.prompts import PromptRecord
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
        result.stats.seconds.update(draft=0.0, other=0.0, verify=result.stats.emitted / next(speeds))
        return result

    monkeypatch.setattr(bench, "_warm_up", lambda *_: None)
    monkeypatch.setattr(engine, "generate", timed)
    report = run_bench(engine, RECORDS[:1], BenchConfig(methods={}, repeats=3, max_new_tokens=4))
    assert report.scores[BASELINE].stats.tokens_per_s == pytest.approx(3.0)


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


def test_repeats_must_be_positive():
    with pytest.raises(ConfigError, match="repeats must be at least 1"):
        BenchConfig(methods={}, repeats=0)
