from spec_trt.runtime.drafters.autoregressive import AutoregressiveDrafter
from tests.runtime.fakes import FakeTarget, speculate


def test_each_pass_is_the_root_alone_and_emits_one_token():
    run = speculate(AutoregressiveDrafter(), FakeTarget(vocab=20, order=3), [1, 2, 3], 10)
    assert [len(tree) for tree in run.trees] == [1] * 10
    assert [len(block) for block in run.blocks] == [1] * 10
