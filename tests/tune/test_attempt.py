import pytest

from spec_trt.runtime.tree import ROOT, TreeBuilder
from spec_trt.tune.attempt import Attempt, attempt_of


@pytest.mark.parametrize(
    ("following", "ranks", "failed"),
    [
        ([9], (), True),
        ([5], (0,), False),  # the text ends behind it
        ([5, 9], (0,), True),
        ([6, 9], (1,), False),  # nothing was drafted behind it
        ([5, 8, 1], (0, 1), False),
        ([5, 7, 6], (0, 0, 0), False),
        ([5, 7, 9], (0, 0), True),
        ([], (), False),
    ],
)
def test_a_text_is_followed_as_far_as_it_was_drafted(following, ranks, failed):
    builder = TreeBuilder(3)
    first, _ = (builder.add(ROOT, token) for token in (5, 6))
    second, _ = (builder.add(first, token) for token in (7, 8))
    builder.add(second, 6)
    assert attempt_of(builder.build(), following) == Attempt(ranks, failed=failed)


def test_without_drafts_nothing_was_tried():
    assert attempt_of(TreeBuilder(3).build(), [5]) == Attempt((), failed=False)
