import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec_trt.tune.attempt import Attempt
from spec_trt.tune.reach import reach_of

TREE = [(0,), (1,), (0, 0), (0, 1), (1, 0)]
ATTEMPTS = [
    *[Attempt((0, 0), failed=False)] * 3,  # nothing is drafted behind it
    Attempt((0, 1), failed=False),
    *[Attempt((0,), failed=True)] * 4,
    *[Attempt((0,), failed=False)] * 2,  # the text ends there
    *[Attempt((1, 0), failed=False)] * 2,
    *[Attempt((), failed=True)] * 8,
]


def test_a_node_is_tried_where_its_parent_was_accepted_and_the_text_goes_on():
    reach = reach_of(ATTEMPTS, TREE, smoothing=0)
    assert reach == pytest.approx({(0,): 0.5, (1,): 0.1, (0, 0): 0.5 * 3 / 8, (0, 1): 0.5 * 1 / 8, (1, 0): 0.1 * 2 / 2})


def test_what_was_seldom_seen_counts_as_its_depth_and_rank():
    shared = 5 / 10  # rank 0 of depth 2, behind either
    reach = reach_of(ATTEMPTS, TREE, smoothing=8)
    assert reach[0,] == 0.5
    assert reach[0, 0] == pytest.approx(0.5 * (3 + 8 * shared) / (8 + 8))
    assert reach[1, 0] == pytest.approx(0.1 * (2 + 8 * shared) / (2 + 8))


def test_what_was_never_tried_is_never_accepted():
    assert reach_of([Attempt((), failed=True)], TREE) == dict.fromkeys(TREE, 0.0)
    assert reach_of([], TREE, smoothing=0) == dict.fromkeys(TREE, 0.0)


@given(st.lists(st.builds(Attempt, st.sampled_from([(), *TREE]), st.booleans())), st.floats(0, 100))
def test_no_child_is_likelier_than_its_parent(attempts, smoothing):
    reach = {(): 1.0} | reach_of(attempts, TREE, smoothing=smoothing)
    assert all(0 <= reach[path] <= reach[path[:-1]] for path in TREE)
