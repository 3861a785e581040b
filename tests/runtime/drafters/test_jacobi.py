import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spec_trt.runtime.drafters.drafter import PassOutput
from spec_trt.runtime.drafters.jacobi import JacobiDrafter, JacobiOptions
from tests.runtime.fakes import FakeTarget, speculate


def started(prompt: list[int], num_draft_tokens: int) -> JacobiDrafter:
    drafter = JacobiDrafter(JacobiOptions(num_draft_tokens=num_draft_tokens))
    drafter.start(prompt, None)
    return drafter


def test_the_first_guesses_repeat_the_root_where_no_ngram_matches():
    assert started([1, 2, 3], 3).propose(9).tokens.tolist() == [3, 3, 3, 3]


def test_the_first_guesses_continue_an_ngram():
    assert started([1, 2, 3, 4, 1, 2], 3).propose(9).tokens.tolist() == [2, 3, 4, 1]


def test_the_guesses_are_a_chain_no_deeper_than_allowed():
    tree = started([1, 2, 3], 5).propose(2)
    assert tree.parents.tolist() == [-1, 0, 1]


def test_argmaxes_behind_the_accepted_path_are_the_next_guesses():
    drafter = started([1], 4)
    tree = drafter.propose(9)
    assert tree.tokens.tolist() == [1, 1, 1, 1, 1]
    # The first guess is right, the extra token is 20; 21 and 22 are guesses, two more are refilled.
    drafter.observe(tree, PassOutput(argmax=np.array([1, 20, 21, 22, 23])), [0, 1], 20)
    assert drafter.propose(9).tokens.tolist() == [20, 21, 22, 23, 23]


def test_a_refill_continues_an_ngram_of_text_and_guesses():
    drafter = started([5, 6, 7, 8, 9, 1], 2)
    tree = drafter.propose(9)
    # Nothing is accepted; the one guess behind the extra token 5 is 6, which 7 followed in the prompt.
    drafter.observe(tree, PassOutput(argmax=np.array([5, 6, 30])[:2]), [0], 5)
    assert drafter.propose(9).tokens.tolist() == [5, 6, 7]


@given(st.integers(0, 500), st.lists(st.integers(0, 5), min_size=1, max_size=6), st.integers(1, 6))
def test_every_pass_starts_from_the_last_ones_argmaxes(seed, prompt, num_draft_tokens):
    target = FakeTarget(vocab=6, order=2, seed=seed)
    run = speculate(JacobiDrafter(JacobiOptions(num_draft_tokens=num_draft_tokens)), target, prompt, 24)
    text = list(prompt)
    for tree, block, following in zip(run.trees, run.blocks, run.trees[1:], strict=False):
        expected = target.argmax(text, tree)[len(block) :].tolist()
        kept = min(len(expected), len(following) - 1)
        assert following.tokens[1 : kept + 1].tolist() == expected[:kept]
        text += block


@given(st.integers(0, 500), st.integers(1, 8), st.integers(1, 30))
def test_n_tokens_take_at_most_n_passes(seed, num_draft_tokens, count):
    drafter = JacobiDrafter(JacobiOptions(num_draft_tokens=num_draft_tokens))
    run = speculate(drafter, FakeTarget(vocab=40, order=3, seed=seed), [1, 2], count)
    assert all(run.blocks)
    assert len(run.blocks) <= count
