"""Greedy output of every method on a tiny model of every family: plain decoding's, and transformers' own."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from spec_trt.runtime.engine import Engine
from spec_trt.runtime.generation import GenerationConfig
from spec_trt.runtime.near_tie import compare_outputs
from tests.families import FAMILIES

TOKENS = 20


@pytest.mark.parametrize("family", FAMILIES)
def test_every_method_equals_plain_and_transformers(family, family_engine, family_model):
    engine = Engine.load(family_engine(family), threads=1)
    model = AutoModelForCausalLM.from_pretrained(family_model(family)).eval()

    @example(prompt=[3 + token * token % 117 for token in range(90)])  # more than one prefill chunk
    @given(prompt=st.lists(st.integers(3, 119), min_size=1, max_size=12).map(lambda ids: ids * 2))
    @settings(max_examples=4, deadline=None)
    def check(prompt):
        expected = greedy(model, prompt)
        for method in engine.methods:
            result = engine.generate(prompt, GenerationConfig(method=method, max_new_tokens=TOKENS, ignore_eos=True))
            comparison = compare_outputs(engine, prompt, expected, result.token_ids)
            assert comparison.verdict != "different", (method, comparison)

    check()


def greedy(model, prompt):
    ids = torch.tensor([prompt])
    config = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False, "eos_token_id": None}
    with torch.no_grad():
        return model.generate(ids, attention_mask=torch.ones_like(ids), **config)[0, len(prompt) :].tolist()
