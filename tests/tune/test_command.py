import json
import os
import shutil

import pytest

from spec_trt.builder.build import build_engine
from spec_trt.builder.config import BuildConfig
from spec_trt.cli import main
from spec_trt.manifest import load_manifest
from spec_trt.runtime.costs import COSTS_FILE
from spec_trt.runtime.engine import Engine
from spec_trt.runtime.generation import GenerationConfig
from tests.tune.trees import flat_costs

LIMITS = ["--max-new-tokens", 6, "--repeats", 1, "--threads", 1]


@pytest.fixture(scope="module")
def built(medusa_bundle, tmp_path_factory):
    """A real engine whose heads are random; every node costs much here, so that one is enough."""
    engine = tmp_path_factory.mktemp("tuning") / "engine"
    build_engine(BuildConfig(bundle=medusa_bundle, out=engine))
    flat_costs(level_ms=50.0).save(engine)
    return engine


@pytest.fixture
def engine(built, tmp_path):
    return shutil.copytree(built, tmp_path / "engine")


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("one", "two two", "three", "four")))
    return path


@pytest.fixture
def run(capsys):
    """Run the command in this process: exit code, stdout, stderr."""

    def run(*args):
        code: int | str | None = 0
        try:
            main(["tune", *map(str, args)])
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def fails(result, *parts):
    code, out, err = result
    assert (code, out) == (1, "")
    [line] = [line for line in err.splitlines() if line.startswith("error: ")]
    for part in parts:
        assert part in line


def test_a_tree_is_written_that_the_engine_then_drafts(run, engine, prompts, tmp_path):
    before = load_manifest(engine).heads
    out = tmp_path / "tree.json"
    code, text, _ = run(engine, "--prompts", prompts, "--methods", "eagle", "--force", "--out", out, "--json", *LIMITS)
    assert code == 0
    found = json.loads(text)["methods"]["eagle"]
    assert found["written"]
    assert found["tuned"]["depth"] == 1
    assert found["default"]["nodes_per_pass"] > 0.6 * (1 + found["default"]["nodes"])
    after = load_manifest(engine, verify=True).heads
    assert before.eagle is not None
    assert after.eagle is not None
    assert after.eagle.tree == found["tuned"]["tree"] == json.loads(out.read_text())
    assert before.eagle.tree != after.eagle.tree
    assert before.medusa == after.medusa
    with Engine.load(engine, threads=1) as loaded:
        results = [
            loaded.generate([3, 4, 5], GenerationConfig(max_new_tokens=6, ignore_eos=True, budget="fixed", **options))
            for options in ({"method": "eagle"}, {"method": "eagle", "options": {"tree": str(out)}}, {})
        ]
    assert results[0].token_ids == results[1].token_ids == results[2].token_ids
    assert results[0].stats.nodes == results[1].stats.nodes > results[2].stats.nodes


def test_a_dry_run_writes_nothing_and_both_methods_are_tuned(run, engine, prompts):
    before = {path.name: path.read_bytes() for path in engine.iterdir()}
    code, text, _ = run(engine, "--prompts", prompts, "--dry-run", "--force", *LIMITS)
    assert code == 0
    assert "medusa: 3 prompts fitted to, 1 held out" in text
    assert "eagle: 3 prompts fitted to, 1 held out" in text
    assert "the engine keeps its tree" in text
    assert {path.name: path.read_bytes() for path in engine.iterdir()} == before


def test_a_budget_of_auto_takes_as_much_of_a_tree_as_pays(run, engine, prompts):
    code, text, _ = run(
        engine, "--prompts", prompts, "--methods", "eagle", "--dry-run", "--json", "--budget", "auto", *LIMITS
    )
    assert code == 0
    found = json.loads(text)["methods"]["eagle"]
    assert found["default"]["nodes_per_pass"] < 0.6 * (1 + found["default"]["nodes"])


def test_without_costs_it_says_how_to_measure_them(run, engine, prompts):
    (engine / COSTS_FILE).unlink()
    fails(run(engine, "--prompts", prompts), "has no measured costs", f"spec-trt profile {engine} --save")
    (engine / COSTS_FILE).write_text("{}")
    fails(run(engine, "--prompts", prompts), "can't be read")


def test_what_makes_no_sense_is_one_line(run, engine, prompts, medusa_bundle, tmp_path):
    fails(run(medusa_bundle, "--prompts", prompts), "is a bundle")
    fails(run(tmp_path / "absent", "--prompts", prompts), "is not a directory")
    fails(run(engine, "--prompts", tmp_path / "absent.jsonl"), "absent.jsonl")
    fails(run(engine, "--prompts", prompts, "--methods", "eagle2"), "static tree", "found eagle2")
    fails(run(engine, "--prompts", prompts, "--out", tmp_path / "tree.json"), "--out takes one method's tree")
    options = [engine, "--prompts", prompts, "--methods", "eagle"]
    fails(run(*options, "--out", tmp_path), "a file in a directory that exists")
    fails(run(*options, "--out", tmp_path / "absent" / "tree.json"), "a file in a directory that exists")
    fails(run(*options, "--limit", 3), "expected 4 or more, found 3")
    fails(run(*options, "--temperature", 1, "--draft-sampling"), "draft_sampling")


def test_an_engine_that_cannot_be_written_is_refused_before_an_hour_of_runs(run, engine, prompts, monkeypatch):
    monkeypatch.setattr("os.access", lambda _path, mode, **_options: mode != os.W_OK)
    fails(run(engine, "--prompts", prompts), f"cannot write to {engine}", "--dry-run")
