import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec_trt.tune.attempt import Attempt
from spec_trt.tune.reach import reach_of
from spec_trt.tune.replay import replay
from spec_trt.tune.trace import Trace, mean_past
from tests.tune.trees import trace

WIDE = [(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]
TEXT = trace([0, 0, 0], [0, 0], [0], [], [1, 0], [0], [])


@pytest.mark.parametrize(
    ("tree", "begun"),
    [
        ([], [0, 1, 2, 3, 4, 5, 6]),
        ([(0,)], [0, 2, 4, 5]),
        ([(0,), (0, 0)], [0, 3, 4, 5]),
        ([(0,), (1,)], [0, 2, 4, 6]),
        (WIDE, [0, 4]),
    ],
)
def test_a_pass_begins_behind_what_the_last_one_emits(tree, begun):
    found = replay([TEXT], tree)
    assert found.begun == [TEXT.attempts[position] for position in begun]
    assert found.accept_length == 7 / len(begun)


def test_lists_of_ranks_are_paths_too():
    assert replay([TEXT, TEXT], [[0], [0, 0]]) == replay([TEXT, TEXT], [(0,), (0, 0)])


@st.composite
def texts(draw):
    """A generation of a few tokens; every attempt ends where the text does at the latest."""
    count = draw(st.integers(1, 12))
    paths = [draw(st.sampled_from([(), *WIDE])) for _ in range(count)]
    return Trace(
        prompt_tokens=1,
        attempts=[
            Attempt(path[: count - 1 - position], failed=len(path) < count - 1 - position)
            for position, path in enumerate(paths)
        ],
    )


@given(st.lists(texts(), min_size=1, max_size=3), st.sets(st.sampled_from(WIDE)))
def test_what_reach_expects_of_the_passes_that_were_begun_is_what_they_gained(traces, nodes):
    tree = [path for path in WIDE if all(path[:depth] in nodes for depth in range(1, len(path) + 1))]
    found = replay(traces, tree)
    if all(attempt.failed for attempt in found.begun):  # where the text ended, more might have been accepted
        reach = reach_of(found.begun, WIDE, smoothing=0)
        assert found.accept_length == pytest.approx(1 + sum(reach[path] for path in tree))


def test_the_mean_past_is_that_of_all_tokens():
    assert mean_past([trace([], [], prompt_tokens=10), trace([], prompt_tokens=4)]) == (9 + 10 + 3) / 3
