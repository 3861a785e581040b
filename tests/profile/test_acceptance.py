from spec_trt.profile.acceptance import accepted_counts, by_depth, by_rank, offered_counts
from spec_trt.profile.recording import DraftedPass

TREE = [(0,), (1,), (0, 0), (0, 1), (1, 0)]


def one(accepted, drafts=TREE):
    return DraftedPass(past=3, drafts=drafts, accepted=accepted)


PASSES = [one(()), one((0,)), one((0, 1)), one((1, 0)), one((), [])]


def test_depth_counts_every_pass():
    assert by_depth(PASSES) == [3 / 5, 2 / 5]
    assert by_depth([one(())]) == by_depth([]) == []


def test_rank_counts_the_passes_that_drafted_it_behind_an_accepted_parent():
    assert by_rank(PASSES) == [[2 / 4, 1 / 4], [1 / 3, 1 / 2]]
    assert by_rank([one(())]) == []


def test_nodes_are_counted():
    assert accepted_counts(PASSES) == {(0,): 2, (0, 1): 1, (1,): 1, (1, 0): 1}
    assert offered_counts(PASSES) == dict.fromkeys(TREE, 4)


def test_a_pass_knows_its_size():
    assert (PASSES[0].nodes, PASSES[0].depth) == (6, 2)
    assert (PASSES[-1].nodes, PASSES[-1].depth) == (1, 0)
