import subprocess
import sys
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_trt.errors import ConfigError
from spec_trt.runtime.drafters import METHODS, available_methods, make_drafter
from spec_trt.runtime.drafters.drafter import Drafter
from spec_trt.runtime.drafters.heads import Heads
from tests.runtime.fake_heads import fake_heads
from tests.runtime.fakes import FakeTarget, speculate

targets = st.builds(
    FakeTarget,
    vocab=st.integers(2, 12),
    order=st.integers(1, 6),
    seed=st.integers(0, 1000),
    period=st.sampled_from([0, 0, 1, 3, 7]),
)
prompts = st.lists(st.integers(0, 11), min_size=1, max_size=12)
options_of: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "autoregressive": st.just({}),
    "ngram": st.fixed_dictionaries(
        {
            "num_draft_tokens": st.integers(1, 9),
            "max_ngram": st.integers(2, 5),
            "min_ngram": st.integers(1, 2),
        }
    ),
    "jacobi": st.fixed_dictionaries({"num_draft_tokens": st.integers(1, 9)}),
    "lookahead": st.fixed_dictionaries(
        {
            "window": st.integers(1, 6),
            "ngram_size": st.integers(2, 5),
            "guesses": st.integers(1, 4),
            "seed_pool": st.booleans(),
            "seed": st.integers(0, 3),
        }
    ),
    "medusa": st.fixed_dictionaries({"nodes": st.integers(0, 9)}),
    "eagle": st.fixed_dictionaries({"nodes": st.integers(0, 9)}),
    "eagle2": st.fixed_dictionaries(
        {
            "depth": st.integers(0, 5),
            "top_k": st.integers(1, 5),
            "total_tokens": st.integers(1, 20),
            "node_probability": st.sampled_from([0.0, 0.08]),
            "level_probability": st.sampled_from([0.0, 0.4]),
        }
    ),
}
HEAD_MODEL = FakeTarget(vocab=12, order=2)
configured = st.sampled_from(list(METHODS)).flatmap(lambda name: st.tuples(st.just(name), options_of[name]))


def make(method: tuple[str, dict[str, Any]], *, eos_ids: tuple[int, ...] = (1,)) -> Drafter:
    name, options = method
    return make_drafter(name, options, vocab=12, eos_ids=eos_ids, heads=fake_heads(HEAD_MODEL.next_token, vocab=12))


@given(configured, targets, prompts, st.integers(1, 40))
@settings(deadline=None)
def test_every_method_emits_what_plain_greedy_decoding_does(method, target, prompt, count):
    run = speculate(make(method), target, prompt, count)
    assert run.tokens == target.greedy(prompt, count)
    assert len(run.blocks) <= count


@given(configured, targets, st.lists(prompts, min_size=2, max_size=3))
@settings(deadline=None)
def test_state_belongs_to_one_sequence(method, target, several_prompts):
    drafter = make(method)
    for prompt in several_prompts:
        reused = speculate(drafter, target, prompt, 12)
        fresh = speculate(make(method), target, prompt, 12)
        assert [tree.tokens.tolist() for tree in reused.trees] == [tree.tokens.tolist() for tree in fresh.trees]
        assert [tree.parents.tolist() for tree in reused.trees] == [tree.parents.tolist() for tree in fresh.trees]


@given(configured, targets, prompts)
@settings(deadline=None, max_examples=50)
def test_a_prompt_of_eos_tokens_alone_is_fine(method, target, prompt):
    run = speculate(make(method, eos_ids=tuple(range(12))), target, prompt, 12)
    assert run.tokens == target.greedy(prompt, 12)


@pytest.mark.parametrize("name", METHODS)
def test_no_room_means_the_root_alone(name):
    drafter = make((name, {}))
    drafter.start([3, 4, 3, 4, 3], None)
    tree = drafter.propose(0)
    assert tree.tokens.tolist() == [3]


@pytest.mark.parametrize("method", [("ngram", {}), ("jacobi", {"num_draft_tokens": 4}), ("lookahead", {})])
def test_a_repeating_text_takes_far_fewer_passes_than_tokens(method):
    target = FakeTarget(vocab=12, order=1, period=6)
    run = speculate(make(method), target, [7], 200)
    assert len(run.blocks) < 80


@pytest.mark.parametrize("name", METHODS)
def test_every_method_and_option_has_its_help(name):
    assert METHODS[name].summary
    for option in fields(METHODS[name].options):
        assert option.metadata["help"]
        assert type(option.default) is option.type


@pytest.mark.parametrize("name", METHODS)
def test_the_defaults_are_accepted_as_given_values(name):
    defaults = {option.name: option.default for option in fields(METHODS[name].options)}
    needs = {"medusa": {"hidden_states"}, "eagle": {"hidden_states"}, "eagle2": {"hidden_states"}}
    assert make((name, defaults)).needs == needs.get(name, set())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("beam", {}, "one of autoregressive, ngram, jacobi, lookahead, medusa, eagle, eagle2: found 'beam'"),
        ("autoregressive", {"window": 3}, "takes no options: found window"),
        ("jacobi", {"window": 3}, "takes the options num_draft_tokens: found window"),
        ("lookahead", {"size": 3}, "window, ngram_size, guesses, seed_pool, seed: found size"),
        ("ngram", {"num_draft_tokens": 0}, "num_draft_tokens must be an integer of at least 1: found 0"),
        ("ngram", {"max_ngram": 0}, "max_ngram must be an integer of at least 1: found 0"),
        ("ngram", {"min_ngram": 5, "max_ngram": 4}, "found 5 and 4"),
        ("jacobi", {"num_draft_tokens": "4"}, "found '4'"),
        ("jacobi", {"num_draft_tokens": True}, "found True"),
        ("lookahead", {"ngram_size": 1}, "ngram_size must be an integer of at least 2: found 1"),
        ("lookahead", {"seed_pool": 1}, "seed_pool must be true or false: found 1"),
        ("lookahead", {"seed": -1}, "seed must be an integer of at least 0: found -1"),
        ("medusa", {"depth": 3}, "takes the options tree, nodes: found depth"),
        ("medusa", {"tree": 3}, "tree must be a text: found 3"),
        ("eagle", {"nodes": -1}, "nodes must be an integer of at least 0: found -1"),
        ("eagle2", {"depth": -1}, "depth must be an integer of at least 0: found -1"),
        ("eagle2", {"top_k": 0}, "top_k must be an integer of at least 1: found 0"),
        ("eagle2", {"total_tokens": 0}, "total_tokens must be an integer of at least 1: found 0"),
    ],
)
def test_bad_methods_and_options_are_refused(name, options, message):
    with pytest.raises(ConfigError, match=message):
        make((name, options))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("medusa", r"needs Medusa heads, the engine has none: .*`spec-trt export MODEL BUNDLE --medusa PATH`"),
        ("eagle", r"needs an EAGLE head, the engine has none: .*`spec-trt export MODEL BUNDLE --eagle PATH`"),
        ("eagle2", r"needs an EAGLE head"),
    ],
)
def test_a_missing_head_is_named_with_the_remedy(name, message):
    with pytest.raises(ConfigError, match=message):
        make_drafter(name, {}, vocab=12, eos_ids=())


def test_the_methods_that_can_run_are_those_whose_head_is_there():
    without = ["autoregressive", "ngram", "jacobi", "lookahead"]
    heads = fake_heads(HEAD_MODEL.next_token, vocab=12)
    assert available_methods(Heads()) == without
    assert available_methods(Heads(medusa=heads.medusa)) == [*without, "medusa"]
    assert available_methods(Heads(eagle=heads.eagle)) == [*without, "eagle", "eagle2"]
    assert available_methods(heads) == list(METHODS)


def test_listing_the_methods_needs_no_torch():
    script = "import sys, spec_trt.runtime.drafters; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
