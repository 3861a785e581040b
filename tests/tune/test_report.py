from dataclasses import replace

import pytest

from spec_trt.manifest import load_manifest
from spec_trt.runtime.stats import Stats
from spec_trt.tune.held_out import HeldOut
from spec_trt.tune.report import MethodReport, TreeReport, TuneReport
from spec_trt.tune.tune import write_trees
from tests.tune.trees import EAGLE, save_engine


def held_out(*ms_per_token, near_ties=0):
    return HeldOut(
        ms_per_token=ms_per_token,
        tokens=[10] * len(ms_per_token),
        stats=Stats(emitted=20, passes=10, nodes=40),
        near_ties=near_ties,
    )


def tree(paths, *ms_per_token, near_ties=0):
    return TreeReport(
        paths=paths, accept_length=2.1, pass_ratio=0.8, held_out=held_out(*ms_per_token, near_ties=near_ties)
    )


DEFAULT = tree([(0,), (1,)], 8, 12)
PLAIN = held_out(10, 20)


def report(tuned, positions=1000):
    method = MethodReport(positions=positions, plain=PLAIN, default=DEFAULT, tuned=tuned)
    return TuneReport(fitted=6, held_out=2, methods={"eagle": method})


QUICKER, SLOWER = tree([(0,), (0, 0)], 7, 11), tree([(0,), (0, 0)], 9, 12)


def test_speeds_are_ratios_over_all_tokens_with_the_range_over_prompts():
    figures = report(QUICKER).to_json()["methods"]["eagle"]
    assert figures["gain"] == pytest.approx(20 / 18)
    assert figures["tuned"]["speedup"] == pytest.approx(30 / 18)
    assert (figures["tuned"]["speedup_low"], figures["tuned"]["speedup_high"]) == (10 / 7, 20 / 11)
    assert figures["tuned"]["predicted_speedup"] == pytest.approx(2.1 * 0.8)
    assert figures["tuned"]["speedup_by_costs"] == pytest.approx(2.0 * 0.8)
    assert figures["tuned"]["nodes_per_pass"] == 4


@pytest.mark.parametrize(
    ("tuned", "force", "written"),
    [(QUICKER, False, True), (SLOWER, False, False), (SLOWER, True, True), (None, True, False)],
)
def test_a_tree_is_written_where_it_beats_the_default_one_or_by_force(tmp_path, tuned, force, written):
    engine = save_engine(tmp_path)
    before = load_manifest(engine)
    done = write_trees(engine, before, report(tuned), force=force)
    after = load_manifest(engine)
    assert done.methods["eagle"].written == written
    assert (after == before) == (not written)
    if written:
        assert after.heads.eagle == replace(EAGLE, tree=[[0], [0, 0]], source="eagle; tree tuned on 6 prompts")
    assert ("it is the engine's tree now" in done.to_text()) == written


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (report(QUICKER), "tuned is 1.111 times as fast as default"),
        (report(SLOWER), "tuned does NOT beat default on the held-out prompts (0.952 times as fast)"),
        (report(None), "no tree is quicker than the default one"),
        (report(tree([(0,)], 7, 7, near_ties=2)), "but for near ties, in 2 of the held-out prompts"),
        (report(QUICKER, positions=99), "only 99 tokens were looked at"),
    ],
)
def test_the_words_say_what_the_figures_mean(found, words):
    assert words in found.to_text()


def test_where_plain_decoding_is_quicker_it_says_so():
    slow = MethodReport(positions=999, plain=held_out(5, 5), default=DEFAULT, tuned=QUICKER)
    text = TuneReport(fitted=6, held_out=2, methods={"eagle": slow}).to_text()
    assert "plain decoding is quicker on the held-out prompts" in text
    assert "plain decoding is quicker" not in report(QUICKER).to_text()
