"""Every supported family: exported with the parity check, and decoding as transformers itself does."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from spec_trt.export.quiet import quiet
from spec_trt.manifest import load_manifest
from tests.conftest import FamilyPath
from tests.export.greedy import GreedyLoop
from tests.families import FAMILIES, VOCAB

PROMPT = [1, 17, 93, 5, 64, 31, 108, 77, 12, 45, 45, 3, 99, 20, 58]
COUNT = 24


def generate(directory: Path, prompt: list[int], count: int) -> list[int]:
    """Decode greedily with transformers; no token ends the text."""
    settings = GenerationConfig(do_sample=False, max_new_tokens=count, pad_token_id=0)
    with quiet():
        model = AutoModelForCausalLM.from_pretrained(directory).eval()
        model.generation_config.eos_token_id = None
        tokens: list[int] = model.generate(torch.tensor([prompt]), generation_config=settings)[0].tolist()
    return tokens[len(prompt) :]


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_decoding_equals_transformers(family: str, family_model: FamilyPath, family_bundle: FamilyPath):
    expected = generate(family_model(family), PROMPT, COUNT)

    assert GreedyLoop(family_bundle(family)).generate(PROMPT, COUNT) == expected
    assert len(set(expected)) > 3  # a model that repeats one token would show little


@pytest.mark.parametrize("family", FAMILIES)
def test_manifest_states_the_dimensions(family: str, family_bundle: FamilyPath):
    facts = load_manifest(family_bundle(family), verify=True).model

    assert (facts.family, facts.dtype, facts.vocab, facts.eos_ids) == (family, "fp32", VOCAB, [2])
    assert (facts.layers, facts.heads, facts.max_positions) == (2, 4, 128)
