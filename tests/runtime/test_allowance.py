import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec_trt.runtime.allowance import UNLIMITED, Allowance, sizes_up_to


@given(
    chances=st.lists(st.floats(0.001, 1.0), max_size=8),
    steps=st.lists(st.floats(0.0, 0.5), min_size=8, max_size=8),
    nodes=st.integers(0, 8),
)
def test_as_many_of_the_likeliest_nodes_as_leave_most_over_their_price(chances, steps, nodes):
    prices = [sum(steps[:count]) for count in range(9)]
    allowance = Allowance(nodes=nodes, prices=prices[: nodes + 1])
    likeliest = sorted(chances, reverse=True)[:nodes]
    left = [sum(likeliest[:count]) - prices[count] for count in range(len(likeliest) + 1)]
    found = allowance.affordable([math.log(chance) for chance in chances])
    assert 0 <= found <= len(likeliest)
    assert left[found] == pytest.approx(max(left))


def test_without_prices_the_number_alone_counts():
    assert Allowance(nodes=3).affordable([0.0] * 9) == 3
    assert UNLIMITED.affordable([]) == sys.maxsize
    assert UNLIMITED.least_chance is None
    assert UNLIMITED.level_chance is None


def test_the_cheapest_node_says_what_is_too_unlikely_at_any_size():
    allowance = Allowance(nodes=3, prices=[0.0, 0.3, 0.35, 0.5], level_price=0.1)
    assert allowance.least_chance == pytest.approx(0.05)
    assert allowance.level_chance == pytest.approx((0.1 + 0.5 / 3) / 0.35)
    assert Allowance(nodes=0, prices=[0.0]).least_chance == 0


def test_there_are_few_sizes_to_look_at():
    assert sizes_up_to(0) == [0]
    assert sizes_up_to(5) == [0, 1, 2, 3, 4, 5]
    assert sizes_up_to(64)[-3:] == [32, 48, 64]
