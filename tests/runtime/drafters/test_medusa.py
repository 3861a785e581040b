import json

import pytest

from spec_trt.runtime.drafters.medusa import MedusaDrafter
from spec_trt.runtime.drafters.static_tree import StaticTreeOptions
from tests.runtime.fake_heads import TREE, fake_medusa
from tests.runtime.fakes import FakeTarget, speculate

MODEL = FakeTarget(vocab=12, order=1)


def make(model=MODEL, *, eos_ids=(), **options):
    medusa = fake_medusa(model.next_token, vocab=12)
    return MedusaDrafter(StaticTreeOptions(**options), model=medusa, eos_ids=frozenset(eos_ids))


def test_exact_heads_are_accepted_to_the_trees_end():
    run = speculate(make(), MODEL, [3, 1], 26)
    assert [len(block) for block in run.blocks] == [5, 5, 5, 5, 5, 1]
    assert run.trees[0].tokens.tolist()[0] == 1
    assert len(run.trees[0]) == len(TREE) + 1


def test_a_prompt_of_one_token_begins_with_the_root_alone():
    run = speculate(make(), MODEL, [3], 11)
    assert [len(tree) for tree in run.trees[:2]] == [1, len(TREE) + 1]
    assert run.tokens == MODEL.greedy([3], 11)


def test_wrong_heads_cost_passes_but_change_nothing():
    wrong = FakeTarget(vocab=12, order=1, seed=5)
    run = speculate(make(wrong), MODEL, [3, 1], 30)
    assert run.tokens == MODEL.greedy([3, 1], 30)
    assert len(run.blocks) > 10


def test_every_node_is_its_heads_candidate_of_that_rank():
    drafter = make()
    run = speculate(drafter, MODEL, [3, 1], 6)
    tree, ahead = run.trees[0], MODEL.greedy([3, 1], 4)
    expected = {tuple((ahead[depth] + rank) % 12 for depth, rank in enumerate(path)) for path in TREE}
    found = {tuple(tree.tokens[tree.path(node)][1:].tolist()) for node in range(1, len(tree))}
    assert found == expected


def test_nothing_is_drafted_behind_the_end_of_a_sequence():
    first = MODEL.next_token([1])
    run = speculate(make(eos_ids=[first]), MODEL, [3, 1], 6)
    tree = run.trees[0]
    assert first in tree.tokens[1:]
    assert all(tree.tokens[parent] != first for parent in tree.parents[1:] if parent)


def test_a_tree_from_a_file(tmp_path):
    (tmp_path / "tree.json").write_text(json.dumps([[2], [0]]))
    run = speculate(make(tree=str(tmp_path / "tree.json")), MODEL, [3, 1], 6)
    assert {len(tree) for tree in run.trees[:2]} == {3}


@pytest.mark.parametrize("depth", range(5))
def test_no_node_is_deeper_than_asked(depth):
    drafter = make()
    speculate(drafter, MODEL, [3, 1], 1)
    assert drafter.propose(depth).depths.max() == depth
