from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spec_trt.runtime.allowance import Allowance
from spec_trt.runtime.drafters.drafter import PassOutput
from spec_trt.runtime.drafters.lookahead import GramPool, LookaheadDrafter, LookaheadOptions
from tests.runtime.fakes import FakeTarget, speculate

VOCAB = 12


class Reference:
    """Lookahead decoding on a two-dimensional array, every cell and guess run on its own prefix."""

    def __init__(self, options: LookaheadOptions, target: FakeTarget, prompt: list[int], eos_ids: frozenset[int]):
        self.size, self.columns, self.capacity = options.ngram_size, options.window, options.guesses
        self.target, self.eos_ids, self.seed_pool = target, eos_ids, options.seed_pool
        self.text = list(prompt)
        self.random = Random(options.seed)
        self.choices = [token for token in prompt if token not in eos_ids] or [min(set(range(VOCAB)) - eos_ids)]
        self.levels = 1
        width = options.window + options.ngram_size - 2
        self.array = np.full((options.ngram_size - 1, width), -1, dtype=np.int64)
        self.array[0, 1:] = [self.random.choice(self.choices) for _ in range(width - 1)]
        self.grams: list[tuple[int, ...]] = []
        if self.seed_pool:
            for end in range(self.size, len(prompt) + 1):
                self.remember(prompt[end - self.size : end])

    def remember(self, gram: list[int]) -> None:
        self.grams = [old for old in self.grams if old != tuple(gram)] + [tuple(gram)]
        same_key = [old for old in self.grams if old[0] == gram[0]]
        self.grams = [old for old in self.grams if old[0] != gram[0] or old in same_key[-self.capacity :]]

    def cell_path(self, level: int, column: int) -> list[int]:
        return [*self.array[0, 1 : column + 1].tolist(), *self.array[1 : level + 1, column].tolist()]

    def one_pass(self, remaining: int) -> list[int]:
        width = self.array.shape[1]
        max_depth, has_window = remaining - 1, remaining - 1 >= self.columns + self.size - 3
        is_full = self.levels == self.size - 1
        paths = [self.cell_path(level, column) for level in range(self.levels) for column in range(width)]
        drafts = paths if has_window else []
        if is_full or not has_window:
            drafts = drafts + [list(gram[1:])[:max_depth] for gram in self.grams if gram[0] == self.text[-1]]
        truth = self.target.greedy(self.text, self.size + width)
        block = truth[: 1 + max([common_length(draft, truth) for draft in drafts], default=0)]
        if has_window:
            self.shift([self.target.next_token([*self.text, *path]) for path in paths[-width:]], is_full)
        before, self.text = len(self.text), self.text + block
        if self.seed_pool:
            for end in range(max(before + 1, self.size), len(self.text) + 1):
                self.remember(self.text[end - self.size : end])
        return block

    def shift(self, answers: list[int], is_full: bool) -> None:
        cells = [self.random.choice(self.choices) if token in self.eos_ids else token for token in answers]
        if is_full:
            self.array[0, 0] = self.text[-1]
            for column, answer in enumerate(answers):
                self.remember([*self.array[:, column].tolist(), answer])
            self.array = np.vstack([self.array[1:], cells])
        else:
            self.array[self.levels] = cells
            self.array = self.array[:, 1:]
            self.levels += 1


def common_length(draft: list[int], truth: list[int]) -> int:
    length = 0
    while length < len(draft) and draft[length] == truth[length]:
        length += 1
    return length


options_strategy = st.builds(
    LookaheadOptions,
    window=st.integers(1, 6),
    ngram_size=st.integers(2, 5),
    guesses=st.integers(1, 4),
    seed_pool=st.booleans(),
    seed=st.integers(0, 3),
)
targets = st.builds(
    FakeTarget,
    vocab=st.integers(2, VOCAB),
    order=st.integers(1, 5),
    seed=st.integers(0, 1000),
    period=st.sampled_from([0, 0, 5]),
)
prompts = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=10)


@given(
    options_strategy,
    targets,
    prompts,
    st.integers(1, 50),
    st.frozensets(st.integers(0, VOCAB - 1), max_size=3),
)
def test_each_pass_emits_what_the_array_form_does(options, target, prompt, count, eos_ids):
    run = speculate(LookaheadDrafter(options, vocab=VOCAB, eos_ids=eos_ids), target, prompt, count)
    reference = Reference(options, target, prompt, eos_ids)
    for number, block in enumerate(run.blocks):
        remaining = count - sum(len(earlier) for earlier in run.blocks[:number])
        assert reference.one_pass(remaining) == block


@given(options_strategy, targets, prompts)
def test_a_pass_has_at_most_the_tokens_of_window_and_guesses(options, target, prompt):
    run = speculate(LookaheadDrafter(options, vocab=VOCAB, eos_ids=frozenset()), target, prompt, 40)
    widest = (options.ngram_size - 1) * (options.window + options.guesses)
    for number, tree in enumerate(run.trees):
        filling = number < options.ngram_size - 2
        assert len(tree) <= (widest + options.ngram_size**2 if filling else widest)


def observed(drafter: LookaheadDrafter, answers: list[int]) -> list[list[int]]:
    """Pass after pass in which node n's argmax is 100 per pass + n: the trees' tokens."""
    trees = []
    for number in answers:
        tree = drafter.propose(99)
        trees.append(tree.tokens.tolist())
        argmax = 100 * number + np.arange(len(tree))
        drafter.observe(tree, PassOutput(argmax=argmax), [0], int(argmax[0]))
    return trees


def test_the_window_fills_and_then_shifts():
    options = LookaheadOptions(window=3, ngram_size=4, guesses=1, seed_pool=False)
    drafter = LookaheadDrafter(options, vocab=1000, eos_ids=frozenset())
    drafter.start([7], None)
    first, second, third, fourth = observed(drafter, [1, 2, 3, 4])
    assert first == [7, 7, 7, 7, 7]
    assert second == [100, *[7, 7, 7], *[101, 102, 103, 104]]
    assert third == [200, *[7, 7], *[102, 103, 104], *[205, 206, 207]]
    assert fourth == [300, *[103, 104], *[205, 206, 207], *[306, 307, 308]]


def test_a_full_window_feeds_the_pool():
    options = LookaheadOptions(window=2, ngram_size=3, guesses=2, seed_pool=False)
    drafter = LookaheadDrafter(options, vocab=1000, eos_ids=frozenset())
    drafter.start([7], None)
    _, full = observed(drafter, [1, 2])
    assert full == [100, *[7], *[101, 102]]
    # The columns were (100, 101) -> 202 and (7, 102) -> 203; let the next token be 7.
    tree = drafter.propose(99)
    drafter.observe(tree, PassOutput(argmax=np.full(len(tree), 7)), [0], 7)
    assert drafter.propose(99).tokens.tolist() == [7, *[203], *[7, 7], *[102, 203]]
    assert drafter.propose(1).tokens.tolist() == [7, 102]


def test_the_pool_is_seeded_from_the_prompt_and_the_output():
    options = LookaheadOptions(window=5, ngram_size=3, guesses=2)
    drafter = LookaheadDrafter(options, vocab=50, eos_ids=frozenset())
    drafter.start([1, 2, 3, 1, 4, 5, 1], None)
    short = drafter.propose(2)
    assert [short.tokens[short.path(node)].tolist() for node in (2, 4)] == [[1, 4, 5], [1, 2, 3]]  # the newest first
    drafter.observe(short, PassOutput(argmax=np.array([2, 5, 6, 3, 1])), [0, 3, 4], 1)
    again = drafter.propose(2)
    assert [again.tokens[again.path(node)].tolist() for node in (2, 4)] == [[1, 2, 3], [1, 4, 5]]


def test_a_short_rest_has_guesses_alone_and_leaves_the_window():
    options = LookaheadOptions(window=4, ngram_size=3)
    drafter = LookaheadDrafter(options, vocab=50, eos_ids=frozenset())
    drafter.start([1, 2, 3, 1], None)
    before = drafter.propose(99)
    short = drafter.propose(1)
    assert short.tokens.tolist() == [1, 2]
    drafter.observe(short, PassOutput(argmax=np.array([1, 9])), [0], 1)
    assert drafter.propose(99).tokens.tolist() == before.tokens.tolist()


def test_the_window_holds_no_eos_tokens():
    options = LookaheadOptions(window=4, ngram_size=3, seed_pool=False)
    drafter = LookaheadDrafter(options, vocab=50, eos_ids=frozenset({9}))
    drafter.start([9, 3, 9, 4], None)
    for root in range(20, 26):
        tree = drafter.propose(99)
        assert 9 not in tree.tokens[1:]
        drafter.observe(tree, PassOutput(argmax=np.full(len(tree), 9)), [0], root)


def test_the_pool_keeps_the_newest_and_a_repeat_becomes_the_newest():
    pool = GramPool(2)
    pool.add([1, 2, 3], of_text=False)
    pool.add([1, 4, 5], of_text=True)
    pool.add([1, 2, 3], of_text=True)
    pool.add([1, 6, 7], of_text=False)
    pool.add([8, 9, 9], of_text=True)
    pool.add([8, 9, 9], of_text=False)
    assert pool.tails(1) == [((2, 3), True), ((6, 7), False)]
    assert pool.tails(8) == [((9, 9), True)]  # the text has it, whoever found it last
    assert pool.tails(2) == []


def test_what_the_text_gives_has_the_first_places():
    options = LookaheadOptions(window=2, ngram_size=3, guesses=2)
    drafter = LookaheadDrafter(options, vocab=1000, eos_ids=frozenset())
    guesses, whole = drafter.sizes()[-2:]
    assert (guesses.nodes, whole.nodes) == (4, 12)
    drafter.start([7, 1, 2, 7, 1, 3, 7], None)
    alone = drafter.propose(9, Allowance(nodes=guesses.nodes))
    assert alone.tokens.tolist() == [7, 1, 3, 2]  # the newest first
    assert [alone.place(node) for node in (1, 2, 3)] == [0, 1, 2]
    for root in (7, 7, 7):  # the window fills
        tree = drafter.propose(9)
        drafter.observe(tree, PassOutput(argmax=100 + np.arange(len(tree))), [0], root)
    tree = drafter.propose(9)
    places = {tuple(tree.tokens[tree.path(node)][1:].tolist()): tree.place(node) for node in range(1, len(tree))}
    of_text = {path for path, place in places.items() if place < guesses.nodes}
    assert of_text <= {(1,), (1, 2), (1, 3), (7,), (7, 7)}
    assert len(places) > len(of_text)
    assert sorted(places.values()) == sorted(set(places.values()))
    assert max(places.values()) < whole.nodes
