import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec_trt.errors import ConfigError, ManifestError, SpecTrtError
from spec_trt.runtime.costs import COSTS_FILE, Costs, DraftCost, VerifyCost
from spec_trt.runtime.outlook import Worth

GRID = {
    (1, 64): {1: 10, 4: 13, 16: 25},
    (1, 512): {1: 14, 4: 18, 16: 36},
    (8, 64): {1: 20, 4: 44, 16: 120},
}


def make_costs(grid=None, **others):
    points = [
        VerifyCost(batch=batch, past=past, nodes=nodes, ms=ms)
        for (batch, past), curve in (grid or GRID).items()
        for nodes, ms in curve.items()
    ]
    return Costs(machine="a machine", threads=2, precision="int8", verify=points, **others)


def test_measured_sizes_are_given_back():
    for (batch, past), curve in GRID.items():
        for nodes, ms in curve.items():
            assert make_costs().verify_ms(nodes, past=past, batch=batch) == ms


@pytest.mark.parametrize(
    ("nodes", "past", "batch", "ms"),
    [
        (2, 64, 1, 11),
        (2.5, 64, 1, 11.5),
        (10, 64, 1, 19),
        (28, 64, 1, 37),  # beyond the largest tree
        (1, 288, 1, 12),
        (1, 960, 1, 18),  # beyond the longest past
        (1, 0, 1, 10),  # nothing is cheaper than what was measured
        (1, 64, 4.5, 15),
        (1, 64, 15, 30),  # beyond the largest batch
        (16, 512, 8, 120),  # of this batch no other past was measured
    ],
)
def test_between_and_beyond_it_is_linear(nodes, past, batch, ms):
    assert make_costs().verify_ms(nodes, past=past, batch=batch) == pytest.approx(ms)


def test_the_order_of_the_points_does_not_matter():
    costs = make_costs()
    assert replace(costs, verify=costs.verify[::-1]).verify_ms(9, past=300, batch=5) == costs.verify_ms(
        9, past=300, batch=5
    )


sizes = st.dictionaries(st.integers(1, 64), st.floats(0.1, 100), min_size=1, max_size=5)


@given(sizes, sizes, sizes, st.integers(1, 80), st.integers(0, 512), st.integers(1, 8))
def test_a_larger_tree_never_costs_less_however_noisy_the_points(one, other, batched, nodes, past, batch):
    costs = make_costs({(1, 0): one, (1, 512): other, (8, 512): batched})
    smaller, larger = (costs.verify_ms(count, past=past, batch=batch) for count in (nodes, nodes + 1))
    assert larger >= smaller - 1e-9 > 0


def test_points_in_the_wrong_order_become_their_mean():
    costs = make_costs({(1, 64): {1: 12, 2: 10, 4: 20}})
    assert [costs.verify_ms(nodes, past=64) for nodes in (1, 2, 4)] == [11, 11, 20]


def test_a_file_gives_back_what_was_written(tmp_path):
    assert Costs.load(tmp_path) is None
    costs = make_costs(
        draft={"ngram": DraftCost(pass_ms=0.1), "eagle": DraftCost(pass_ms=3, fixed_ms=1, level_ms=1, node_ms=0.1)},
        worth={"eagle": Worth(accepted=[0.5, 0.2], present=[1.0, 0.9], calibration=1.1)},
        overhead_ms=0.3,
    )
    costs.save(tmp_path)
    assert Costs.load(tmp_path) == costs
    costs.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [COSTS_FILE]


@pytest.mark.parametrize(
    "change",
    [
        {"version": 1},
        {"verify": []},
        {"verify": [{"batch": 1, "nodes": 1, "past": 64, "ms": "quick"}]},
        {"verify": [{"batch": 1, "nodes": 1, "past": 64, "ms": 0}]},
        {"verify": [{"batch": 1, "nodes": 1, "past": 64, "ms": 2}] * 2},
        {"verify": [{"batch": 1, "nodes": 1, "ms": 2}]},
        {"draft": {"eagle": {"pass_ms": None, "level_ms": True}}},
        {"draft": 3},
        {"draft": {"eagle": {"pass_ms": None}}},
        {"draft": {"eagle": {"pass_ms": float("nan")}}},
        {"overhead_ms": None},
        {"overhead_ms": -10},
        {"verify": [{"batch": 1, "nodes": 1, "past": 64, "ms": 10**400}]},
        {"verify": [{"batch": 1, "nodes": float("nan"), "past": 64, "ms": 2}]},
        {"worth": {"eagle": {"accepted": [0.5], "present": [], "calibration": 1.0}}},
        {"worth": {"eagle": {"accepted": [1.5], "present": [1.0], "calibration": 1.0}}},
        {"worth": {"eagle": {"accepted": ["often"], "present": [1.0], "calibration": 1.0}}},
        {"worth": {"eagle": {"accepted": [0.5], "present": [1.0], "calibration": 0}}},
        {"worth": {"eagle": {"accepted": 0.5, "present": 1.0, "calibration": 1.0}}},
        {"unknown": 3},
    ],
)
def test_a_damaged_file_is_refused_with_what_to_do(tmp_path, change):
    make_costs().save(tmp_path)
    path = tmp_path / COSTS_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ManifestError, match=r"can't be read .*profile .* --save"):
        Costs.load(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"version": 1}'])
def test_what_is_no_file_of_costs_is_refused(tmp_path, text):
    (tmp_path / COSTS_FILE).write_text(text)
    with pytest.raises(ManifestError, match="can't be read"):
        Costs.load(tmp_path)


def test_where_nothing_can_be_written_nothing_is_left(tmp_path):
    with pytest.raises(SpecTrtError, match="cannot write"):
        make_costs().save(tmp_path / "absent")
    (tmp_path / COSTS_FILE).mkdir()
    with pytest.raises(SpecTrtError, match="cannot write"):
        make_costs().save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [COSTS_FILE]


def test_costs_without_a_pass_are_refused():
    with pytest.raises(ConfigError, match="at least one verify pass"):
        Costs(machine="", threads=None, precision="fp32", verify=[])
