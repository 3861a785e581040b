from itertools import pairwise

import pytest

from spec_trt.runtime.drafters import make_drafter
from spec_trt.runtime.drafters.eagle2 import Eagle2Options
from spec_trt.runtime.drafters.heads import Heads
from tests.runtime.fake_heads import TREE, fake_eagle
from tests.runtime.fakes import FakeTarget, speculate

MODEL = FakeTarget(vocab=12, order=4)
WRONG = FakeTarget(vocab=12, order=4, seed=5)
LONG = [number * number % 12 for number in range(30)]


def make(method="eagle", model=MODEL, version=1, *, eos_ids=(), **options):
    eagle = fake_eagle(model.next_token, 12, version, chunk=7)
    return make_drafter(method, options, vocab=12, eos_ids=eos_ids, heads=Heads(eagle=eagle)), eagle


def rows(eagle):
    """Those committed, and those taken for the next draft."""
    return eagle.cache.lengths[0] + eagle.backlog


@pytest.mark.parametrize("version", [1, 3])
@pytest.mark.parametrize(("method", "levels"), [("eagle", 4), ("eagle2", Eagle2Options().depth + 1)])
def test_an_exact_head_is_accepted_to_the_trees_end(method, levels, version):
    drafter, eagle = make(method, version=version)
    run = speculate(drafter, MODEL, LONG, 5 * (levels + 1))
    assert [len(block) for block in run.blocks] == [levels + 1] * 5
    assert rows(eagle) == len(LONG) - 1 + 5 * (levels + 1)


@pytest.mark.parametrize("version", [1, 3])
@pytest.mark.parametrize("method", ["eagle", "eagle2"])
def test_a_wrong_head_costs_passes_but_changes_nothing(method, version):
    drafter, eagle = make(method, WRONG, version)
    run = speculate(drafter, MODEL, LONG, 40)
    assert run.tokens == MODEL.greedy(LONG, 40)
    assert len(run.blocks) > 10
    assert rows(eagle) == len(LONG) - 1 + 40


@pytest.mark.parametrize("method", ["eagle", "eagle2"])
def test_a_prompt_of_one_token_begins_with_the_root_alone(method):
    drafter, _ = make(method)
    run = speculate(drafter, MODEL, [3], 11)
    assert len(run.trees[0]) == 1
    assert len(run.trees[1]) > 5
    assert run.tokens == MODEL.greedy([3], 11)


def test_the_static_trees_nodes_are_candidates_of_their_rank():
    drafter, _ = make()
    drafter_tree = speculate(drafter, MODEL, LONG, 6).trees[0]
    expected = set()
    for path in TREE:
        text = list(LONG)
        for rank in path:
            text.append((MODEL.next_token(text) + rank) % 12)
        expected.add(tuple(text[len(LONG) :]))
    found = {tuple(drafter_tree.tokens[drafter_tree.path(node)][1:].tolist()) for node in range(1, len(drafter_tree))}
    assert found == expected


@pytest.mark.parametrize("method", ["eagle", "eagle2"])
def test_nothing_is_drafted_behind_the_end_of_a_sequence(method):
    first = MODEL.next_token(LONG)
    drafter, _ = make(method, eos_ids=[first])
    tree = speculate(drafter, MODEL, LONG, 6).trees[0]
    assert first in tree.tokens[1:]
    assert all(tree.tokens[parent] != first for parent in tree.parents[1:] if parent)


@pytest.mark.parametrize("method", ["eagle", "eagle2"])
def test_proposing_again_proposes_the_same(method):
    drafter, _ = make(method)
    speculate(drafter, MODEL, LONG, 5)
    first, second, shallow = drafter.propose(9), drafter.propose(9), drafter.propose(2)
    assert first.tokens.tolist() == second.tokens.tolist()
    assert first.parents.tolist() == second.parents.tolist()
    assert shallow.depths.max() == 2


@pytest.mark.parametrize("method", ["eagle", "eagle2"])
def test_making_a_drafter_leaves_a_running_one_alone(method):
    drafter, eagle = make(method)
    speculate(drafter, MODEL, LONG, 5)
    expected = drafter.propose(9).tokens.tolist()
    make_drafter(method, {}, vocab=12, eos_ids=(), heads=Heads(eagle=eagle))
    assert drafter.propose(9).tokens.tolist() == expected


@pytest.mark.parametrize("method", ["eagle", "eagle2"])
def test_passes_have_few_sizes(method):
    drafter, eagle = make(method, WRONG)
    speculate(drafter, MODEL, LONG, 40)
    levels = [window for window in eagle._session.windows if window[1] > window[0]]
    assert len(levels) > 40
    assert len(set(levels)) <= 4
    assert all(first[1] < second[1] for first, second in pairwise(sorted(set(levels), key=lambda size: size[1])))
