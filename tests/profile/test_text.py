from dataclasses import replace

from spec_trt.profile.break_even import standing
from spec_trt.profile.text import margin_line
from tests.profile.test_break_even import chain, costs


def test_a_prediction_that_is_off_is_named():
    plain = standing("autoregressive", [chain(0, 0)], costs(), measured_speedup=1.0)
    assert margin_line([plain]) == "predicted and measured speed-ups agree within 10%"
    assert margin_line([replace(plain, measured_speedup=None)]) == margin_line([plain])
    line = margin_line([plain, replace(plain, method="eagle", measured_speedup=0.85)])
    assert line.startswith(
        "predicted and measured speed-ups differ by more than 10% for eagle: the machine had other work"
    )
