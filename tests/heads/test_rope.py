from dataclasses import replace

import pytest

from spec_trt.heads.rope import draft_rope
from tests.heads.checkpoints import THETA, make_target

OWN = {"rope_type": "linear", "factor": 2.0, "rope_theta": 9.0}


def test_the_targets_is_used_and_a_difference_said():
    settings, notes = draft_rope({"rope_theta": 10000.0}, make_target())
    assert settings == {"rope_type": "default", "rope_theta": THETA}
    assert notes == ["its rope_theta 10000 is not used, the target's 5000 is"]
    assert draft_rope({"rope_theta": THETA}, make_target())[1] == []


@pytest.mark.parametrize(
    "config",
    [
        {"rope_parameters": OWN},
        {"rope_theta": 9.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_theta": 9.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_theta": 8.0, "rope_parameters": OWN},
    ],
)
def test_the_drafts_is_used_where_the_target_has_none(config):
    assert draft_rope(config, replace(make_target(), rope_parameters=None)) == (OWN, [])


@pytest.mark.parametrize("config", [{"rope_scaling": None}, {"rope_parameters": {"full_attention": OWN}}])
def test_none_anywhere_is_said(config):
    settings, notes = draft_rope(config, replace(make_target(), rope_parameters=None))
    assert settings == {"rope_type": "default", "rope_theta": 10000.0}
    assert notes == ["neither target nor head says a rope_theta: taken as 10000"]
