import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec_trt.profile.svg import Label, Plot, Scale, nice_ticks, tag


def test_elements_are_escaped():
    assert (
        tag("text", "a", class_="x<y", stroke_width=1.50, d=None) == '<text class="x&lt;y" stroke-width="1.5">a</text>'
    )
    assert tag("rect", x=3) == '<rect x="3"/>'


def test_scales():
    linear = Scale(low=0, high=10, start=100, end=0)
    assert [linear(value) for value in (0, 5, 10, 20, -1)] == [100, 50, 0, 0, 100]
    assert Scale(low=1, high=16, start=0, end=40, log=True)(4) == pytest.approx(20)
    assert Scale(low=3, high=3, start=7, end=40)(3) == 7


@given(st.floats(1e-3, 1e6), st.integers(2, 8))
def test_ticks_are_round_and_cover_the_range(high, count):
    ticks = nice_ticks(high, count)
    assert ticks[0] == 0
    assert ticks[-1] >= high * (1 - 1e-6)
    assert len(ticks) <= count + 2


def test_labels_keep_out_of_each_others_way():
    plot = Plot.framed(500, 300, x=(0, 1), y=(0, 1))
    crowd = [Label(x=250.0 + 3 * index, y=150.0, text=f"method{index}", class_="m0") for index in range(5)]
    plot.labels(crowd)
    texts = [element for element in ElementTree.fromstring(plot.svg("crowd")) if element.tag.endswith("text")]
    boxes = [(float(one.attrib["x"]), float(one.attrib["y"])) for one in texts]
    wide = 6.6 * len("method0")
    for index, (x, y) in enumerate(boxes):
        assert all(abs(x - other) >= wide or abs(y - height) >= 13 for other, height in boxes[index + 1 :])
