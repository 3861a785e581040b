import numpy as np
import pytest

from spec_trt import names
from spec_trt.runtime.drafters.drafter import PassOutput
from spec_trt.runtime.rejection import RejectionAcceptance, drawn_children, residual, without
from spec_trt.runtime.sampler import Sampler
from spec_trt.runtime.sampling import Sampling
from spec_trt.runtime.tree import ROOT, TreeBuilder

DRAFT = np.array([0.5, 0.3, 0.2, 0.0])


def test_what_the_target_has_more_of_is_left():
    assert residual(np.array([0.4, 0.1, 0.4, 0.1]), DRAFT) == pytest.approx([0, 0, 2 / 3, 1 / 3])
    assert residual(DRAFT, DRAFT) is None


def test_a_token_taken_out_leaves_the_others_in_proportion():
    assert without(DRAFT, 0) == pytest.approx([0, 0.6, 0.4, 0])
    assert without(np.array([0.0, 1.0]), 1).tolist() == [0, 0]
    assert DRAFT[0] == 0.5


def drafted(tokens):
    builder = TreeBuilder(3)
    for token in tokens:
        builder.add(ROOT, token)
    builder.draft_probs[ROOT] = DRAFT
    return builder.build()


def test_children_come_in_draw_order_each_with_what_it_was_drawn_from():
    found = list(drawn_children(drafted([2, 0, 1]), ROOT))
    assert [(child, token) for child, token, _ in found] == [(1, 2), (2, 0), (3, 1)]
    for (*_, left), expected in zip(found, [DRAFT, [0.625, 0.375, 0, 0], [0, 1, 0, 0]], strict=True):
        assert left == pytest.approx(expected)
    assert list(drawn_children(TreeBuilder(3).build(), ROOT)) == []


def accept(target, tokens, seed):
    tree = drafted(tokens)
    sampler = Sampler(Sampling(temperature=1, draft_sampling=True, seed=seed), [3], vocab=4)
    with np.errstate(divide="ignore"):
        logits = np.log(np.tile(target, (len(tree), 1)))
    out = PassOutput(argmax=tree.tokens, tensors={names.LOGITS: logits})
    path, extra = RejectionAcceptance(sampler).accept(tree, out)
    assert sampler.position == len(path)
    return tree.tokens[path[1:]].tolist(), extra


@pytest.mark.parametrize("seed", range(20))
def test_what_is_certain_needs_no_luck(seed):
    assert accept(DRAFT, [1, 0, 2], seed)[0] == [1]  # the target's own law: the first draw
    assert accept([0.0, 0.0, 0.0, 1.0], [1, 0, 2], seed) == ([], 3)  # impossible drafts
    path, extra = accept([0.0, 0.3, 0.7, 0.0], [0, 1], seed)  # the first is impossible, the second left over
    assert path in ([], [1])
    assert path == [1] or extra == 2


def test_a_drafts_own_share_decides():
    """p / q of the only child is 0.2 / 0.5; the rest of the target is drawn otherwise."""
    target = [0.2, 0.3, 0.2, 0.3]
    outcomes = [accept(target, [0], seed) for seed in range(3000)]
    accepted = sum(path == [0] for path, _ in outcomes) / len(outcomes)
    assert abs(accepted - 0.4) < 4 * (0.4 * 0.6 / len(outcomes)) ** 0.5
    assert {extra for path, extra in outcomes if not path} == {3}
