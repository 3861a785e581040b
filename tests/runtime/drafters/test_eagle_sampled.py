import pytest

from spec_trt.errors import ConfigError
from spec_trt.runtime.drafters import make_drafter
from spec_trt.runtime.drafters.heads import Heads
from spec_trt.runtime.rejection import without
from spec_trt.runtime.sampler import Sampler
from spec_trt.runtime.sampling import Sampling
from spec_trt.runtime.tree import ROOT
from tests.runtime.fake_heads import TREE, fake_eagle
from tests.runtime.fakes import FakeTarget, speculate

MODEL = FakeTarget(vocab=12, order=4)
LONG = [number * number % 12 for number in range(30)]


def make(*, eos_ids=(), version=1, seed=0, **sampling):
    sampler = Sampler(Sampling(temperature=1, draft_sampling=True, seed=seed, **sampling), LONG, vocab=12)
    heads = Heads(eagle=fake_eagle(MODEL.next_token, 12, version, chunk=7))
    return make_drafter("eagle", {}, vocab=12, eos_ids=eos_ids, heads=heads, sampler=sampler), sampler


@pytest.fixture
def proposed():
    """The first tree behind a prompt, for a way to draw."""

    def propose(max_depth=9, **settings):
        drafter, _ = make(**settings)
        return speculate(drafter, MODEL, LONG, max_depth + 1).trees[0]

    return propose


@pytest.mark.parametrize("version", [1, 3])
def test_the_trees_shape_is_fixed_and_its_siblings_are_drawn(proposed, version):
    trees = [proposed(version=version, seed=seed) for seed in range(12)]
    shape = sorted(len(path) for path in TREE)
    assert all(sorted(tree.depths[1:].tolist()) == shape for tree in trees)
    assert len({tuple(tree.tokens.tolist()) for tree in trees}) > 6
    first = [tree.tokens[1] for tree in trees]
    assert MODEL.next_token(LONG) in first  # the draft's likeliest
    assert len(set(first)) > 1


def test_a_parent_keeps_what_its_children_were_drawn_from(proposed):
    tree = proposed()
    parents = {int(parent) for parent in tree.parents[1:]}
    assert set(tree.draft_probs) == parents
    for parent, probs in tree.draft_probs.items():
        assert probs.shape == (12,)
        assert probs.sum() == pytest.approx(1)
        text = [*LONG, *tree.tokens[tree.path(parent)[1:]].tolist()]
        assert probs.argmax() == MODEL.next_token(text)
        for child in tree.topology.children[parent]:
            assert probs[tree.tokens[child]] > 0
            probs = without(probs, int(tree.tokens[child]))


def test_the_same_seed_draws_the_same_drafts(proposed):
    assert proposed(seed=3).tokens.tolist() == proposed(seed=3).tokens.tolist()


def test_fewer_siblings_are_drawn_where_fewer_tokens_are_possible(proposed):
    tree = proposed(top_k=2)
    children = [len(children) for children in tree.topology.children]
    assert children[ROOT] == 2
    assert max(children) == 2
    assert len(proposed(top_k=1)) == 1 + max(map(len, TREE))


def test_nothing_is_drafted_behind_the_end_of_a_sequence(proposed):
    eos = MODEL.next_token(LONG)
    trees = [proposed(eos_ids=[eos], seed=seed) for seed in range(8)]
    assert any(eos in tree.tokens[1:] for tree in trees)
    assert all(tree.tokens[parent] != eos for tree in trees for parent in tree.parents[1:] if parent != ROOT)


def test_drafts_see_their_own_prefix(proposed):
    """Against a penalty the draft's likeliest token behind a path is another once the path holds it."""
    tree = proposed(repetition_penalty=1e6)
    for parent, probs in tree.draft_probs.items():
        seen = {*LONG, *tree.tokens[tree.path(parent)[1:]].tolist()}
        unseen = set(range(12)) - seen
        assert not unseen or int(probs.argmax()) in unseen


def test_the_draft_is_cut_to_its_levels(proposed):
    assert proposed(max_depth=2).depths.max() == 2


def test_a_dynamic_tree_can_not_be_drawn():
    _, sampler = make()
    heads = Heads(eagle=fake_eagle(MODEL.next_token, 12))
    with pytest.raises(ConfigError, match="found eagle2; choose such a method, or leave draft_sampling out"):
        make_drafter("eagle2", {}, vocab=12, eos_ids=(), heads=heads, sampler=sampler)
