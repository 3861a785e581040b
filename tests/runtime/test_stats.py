import json

import pytest

from spec_trt.runtime.stats import Stats


def passes(*accepted):
    stats = Stats(prompt_tokens=5)
    for count in accepted:
        stats.record_pass(nodes=4, accepted=count)
    return stats


def test_accept_length_counts_the_extra_token_of_every_pass():
    stats = passes(0, 2, 3)
    assert (stats.emitted, stats.passes, stats.nodes) == (8, 3, 12)
    assert stats.accept_length == pytest.approx(8 / 3)
    assert stats.accepted_by_depth == [2, 2, 1]


def test_sum_adds_everything():
    total = passes(0, 2) + passes(3)
    total.seconds["verify"] = 2.0
    assert (total.emitted, total.passes, total.prompt_tokens) == (8, 3, 10)
    assert total.accepted_by_depth == [2, 2, 1]
    assert total.tokens_per_s == 4.0
    assert total.ms_per_pass("verify") == pytest.approx(2000 / 3)


def test_nothing_run_is_no_division_by_zero():
    stats = Stats()
    assert (stats.accept_length, stats.tokens_per_s, stats.ms_per_pass("draft")) == (0, 0, 0)


def test_time_adds_up_and_survives_an_error():
    stats = Stats()
    with stats.time("draft"):
        pass
    with pytest.raises(ValueError, match="boom"), stats.time("draft"):
        raise ValueError("boom")
    assert stats.seconds["draft"] > 0
    assert stats.decode_seconds == stats.seconds["draft"]


def test_json_has_the_documented_keys():
    figures = json.loads(json.dumps(passes(1).to_json()))
    assert {"tokens_per_s", "accept_length", "passes", "draft_ms", "verify_ms", "other_ms"} <= set(figures)
