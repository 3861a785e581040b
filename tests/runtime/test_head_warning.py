import pytest

from spec_trt.runtime.head_warning import head_warning
from spec_trt.runtime.stats import Stats


def stats(passes, *, nodes=9, accepted=0):
    found = Stats()
    for number in range(passes):
        found.record_pass(nodes=nodes, accepted=accepted if number == 0 else 0)
    return found


@pytest.mark.parametrize("method", ["medusa", "eagle", "eagle2"])
def test_a_head_whose_tokens_are_never_accepted_is_named(method):
    warning = head_warning(method, stats(16))
    assert warning == (
        f"warning: {method} drafted 128 tokens in 16 passes and none was accepted: "
        "its head was most likely trained for another model"
    )


@pytest.mark.parametrize(
    ("method", "found"),
    [
        ("eagle", stats(3)),
        ("eagle", stats(200, accepted=1)),
        ("eagle", stats(200, nodes=1)),
        ("ngram", stats(200)),
        ("autoregressive", stats(200, nodes=1)),
    ],
)
def test_nothing_is_said_where_nothing_is_known_or_wrong(method, found):
    assert head_warning(method, found) is None
