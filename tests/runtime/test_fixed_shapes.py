import pytest

from spec_trt.errors import BackendError
from spec_trt.runtime.fixed_shapes import FixedShapes

SHAPES = FixedShapes(capacity=100, max_nodes=8, decode_window=16, prefill_chunk=64)


@pytest.mark.parametrize(
    ("nodes", "prefill", "tentative", "expected"),
    [(1, False, 0, 16), (8, False, 8, 16), (8, True, 0, 64), (64, True, 0, 64)],
)
def test_the_window_is_the_same_for_all_passes_of_a_kind(nodes, prefill, tentative, expected):
    assert SHAPES.window(nodes, prefill=prefill, tentative=tentative) == expected


@pytest.mark.parametrize(
    ("nodes", "prefill", "tentative", "words"),
    [
        (9, False, 0, "at most 8 nodes, found 9: draft fewer, or build it again with --max-nodes 9"),
        (8, False, 9, "room for 16 drafted rows of one step, found 17: draft fewer, or .* --max-nodes 17"),
        (65, True, 0, "at most 64 nodes, found 65"),
    ],
)
def test_what_there_is_no_room_for_is_refused(nodes, prefill, tentative, words):
    with pytest.raises(BackendError, match=words):
        SHAPES.window(nodes, prefill=prefill, tentative=tentative)


@pytest.mark.parametrize(("nodes", "expected"), [(1, 8), (8, 8), (9, 16), (33, 64), (64, 64)])
def test_chunks_of_a_text_have_few_sizes(nodes, expected):
    assert SHAPES.padded(nodes) == expected
