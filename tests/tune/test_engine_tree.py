from dataclasses import replace

import pytest

from spec_trt.errors import ManifestError, SpecTrtError
from spec_trt.manifest import describe_files, load_manifest, save_manifest
from spec_trt.tune.engine_tree import head_facts, load_engine_manifest, write_tree
from tests.test_manifest import make_manifest
from tests.tune.trees import EAGLE, save_engine

TUNED = [(0,), (0, 1)]


@pytest.fixture
def engine(tmp_path):
    return save_engine(tmp_path)


@pytest.mark.parametrize(("method", "other"), [("medusa", "eagle"), ("eagle", "medusa")])
def test_a_tree_is_written_and_all_else_stays(engine, method, other):
    before = load_manifest(engine, verify=True)
    names = sorted(path.name for path in engine.iterdir())
    returned = write_tree(engine, before, method, TUNED, "on 9 prompts")
    after = load_manifest(engine, verify=True)
    assert after == returned
    facts = head_facts(after, method)
    assert facts is not None
    assert facts.tree == [[0], [0, 1]]
    assert facts.source == f"{method}; tree tuned on 9 prompts"
    assert head_facts(after, other) == head_facts(before, other)
    assert (after.files, after.graphs, after.engine, after.model) == (
        before.files,
        before.graphs,
        before.engine,
        before.model,
    )
    assert sorted(path.name for path in engine.iterdir()) == names


def test_the_source_says_how_it_was_tuned_last(engine):
    once = write_tree(engine, load_manifest(engine), "eagle", TUNED, "on 9 prompts")
    twice = write_tree(engine, once, "eagle", [(0,)], "on 30 prompts")
    assert twice.heads.eagle == replace(EAGLE, source="eagle; tree tuned on 30 prompts")


def test_an_engine_that_was_built_again_meanwhile_is_left_alone(engine):
    loaded = load_manifest(engine)
    write_tree(engine, loaded, "medusa", TUNED, "on 9 prompts")
    with pytest.raises(ManifestError, match="changed since"):
        write_tree(engine, loaded, "eagle", TUNED, "on 9 prompts")
    assert load_manifest(engine).heads.eagle == EAGLE


def test_where_nothing_can_be_written_all_is_as_it_was(engine, monkeypatch):
    def fail(_manifest, _directory):
        raise OSError(28, "No space left on device")

    before = load_manifest(engine)
    monkeypatch.setattr("spec_trt.tune.engine_tree.save_manifest", fail)
    with pytest.raises(SpecTrtError, match="No space left on device"):
        write_tree(engine, before, "medusa", TUNED, "on 9 prompts")
    assert load_manifest(engine) == before
    assert sorted(path.name for path in engine.iterdir()) == ["base.onnx", "costs.json", "manifest.json"]


def test_a_bundle_is_refused(engine):
    assert load_engine_manifest(engine) == load_manifest(engine)
    save_manifest(make_manifest(files=describe_files(engine)), engine)
    with pytest.raises(ManifestError, match="is a bundle"):
        load_engine_manifest(engine)
