import pytest

from spec_trt.errors import BackendError
from spec_trt.runtime.shape_profiles import Profile, choose_profile, find_misfits

DIMENSIONS: dict[str, list[int | str]] = {"input_ids": ["batch", "nodes"], "past_key.0": ["batch", 2, "past", 64]}


def profile(index, name, *, nodes, past=(512, 512)):
    return Profile(
        index=index,
        name=name,
        smallest={"input_ids": (1, nodes[0]), "past_key.0": (1, 2, past[0], 64)},
        largest={"input_ids": (4, nodes[1]), "past_key.0": (4, 2, past[1], 64)},
    )


PROFILES = [profile(0, "decode", nodes=(1, 8)), profile(1, "prefill", nodes=(4, 64))]


def shapes(nodes, *, batch=1, past=512, key_heads=2):
    return {"input_ids": (batch, nodes), "past_key.0": (batch, key_heads, past, 64)}


def choose(given):
    return choose_profile("base", PROFILES, given, DIMENSIONS)


@pytest.mark.parametrize(("nodes", "expected"), [(1, "decode"), (8, "decode"), (9, "prefill"), (64, "prefill")])
def test_the_first_profile_that_fits_is_taken(nodes, expected):
    assert choose(shapes(nodes)).name == expected


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (shapes(65), "1 to 8 nodes in decode, found 65: draft fewer nodes, or build it again with --max-nodes 65"),
        (shapes(1, batch=5), "1 to 4 batch in decode, found 5: run fewer sequences at once, or .* --max-batch 5"),
        (shapes(1, past=600), "512 past in decode, found 600: build it again with --max-length 600"),
        (shapes(1, past=500), "512 past in decode, found 500: export and build it again"),
        (shapes(1, key_heads=3), r"2 past_key.0\[1\] in decode, found 3: export and build it again"),
    ],
)
def test_what_fits_none_is_refused_with_the_way_out(given, words):
    with pytest.raises(BackendError, match=f"^the engine's graph 'base' takes {words}$"):
        choose(given)


def test_the_message_is_about_the_nearest_profile():
    with pytest.raises(BackendError, match="4 to 64 nodes in prefill, found 65"):
        choose_profile("base", [profile(0, "decode", nodes=(1, 8), past=(9, 9)), PROFILES[1]], shapes(65), DIMENSIONS)


def test_a_dimension_is_named_once():
    misfits = find_misfits(PROFILES[0], shapes(9, batch=7), DIMENSIONS)
    assert [misfit.dimension for misfit in misfits] == ["batch", "nodes"]


def test_inputs_without_named_dimensions_are_named_by_place():
    with pytest.raises(BackendError, match=r"input_ids\[1\] in decode, found 0"):
        choose_profile("base", PROFILES[:1], shapes(0), {})
