import numpy as np
import torch

from spec_trt.runtime.sampler import Sampler, as_array
from spec_trt.runtime.sampling import Sampling

LOGITS = np.array([2.0, 1.9, -1.0, 0.0])


def make(prompt=(3,), **sampling):
    return Sampling(**sampling), Sampler(Sampling(**sampling), prompt, vocab=4)


def test_a_greedy_choice_is_the_likeliest_after_the_penalty():
    _, sampler = make([0], repetition_penalty=1.5)
    assert sampler.choose(LOGITS) == 1
    assert sampler.choose(LOGITS) == 0  # both are of the text by now: the likeliest again
    assert sampler.position == 2


def test_a_path_counts_as_part_of_the_text_for_the_position_behind_it_only():
    _, sampler = make([3], repetition_penalty=2)
    assert sampler.scores(LOGITS, [0, 2]).tolist() == [1, 1.9, -2, 0]
    assert sampler.scores(LOGITS).tolist() == LOGITS.tolist()
    sampler.record(0)
    assert sampler.scores(LOGITS).tolist() == [1, 1.9, -1, 0]


def test_what_is_drawn_depends_on_seed_and_position_alone():
    outputs = []
    for seed in (5, 5, 6):
        _, sampler = make(temperature=2, seed=seed)
        outputs.append([sampler.choose(LOGITS) for _ in range(30)])
    assert outputs[0] == outputs[1] != outputs[2]
    assert len(set(outputs[0])) == 4
    _, sampler = make(temperature=2, seed=5)
    for token in (1, 1, 1):
        sampler.record(token)
    assert [sampler.choose(LOGITS) for _ in range(27)] == outputs[0][3:]


def test_logits_of_any_kind_are_copied():
    kept = torch.tensor([1.0, -2.0], dtype=torch.bfloat16)
    for logits in (kept, kept.half(), kept.float(), kept.float().numpy(), kept.double().numpy()):
        scores = as_array(logits)
        assert scores.dtype == np.float64
        scores[:] = 0
        assert [float(logit) for logit in logits] == [1, -2]
