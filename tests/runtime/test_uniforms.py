import numpy as np

from spec_trt.runtime.uniforms import uniform


def test_a_number_depends_on_all_that_it_is_for():
    assert uniform(3, "token", 5) == uniform(3, "token", 5, 0)
    numbers = [uniform(0, "token", 0), uniform(1, "token", 0), uniform(0, "token", 1), uniform(0, "token", 0, 1)]
    numbers += [uniform(0, "accept", 0), uniform(0, "draft", 0)]
    assert len(set(numbers)) == len(numbers)


def test_numbers_stay_the_same_in_every_version():
    assert uniform(0, "token", 0) == 0.9613447117585148
    assert uniform(2**64 - 1, "draft", 7, 3) == 0.5282294087643732


def test_numbers_are_uniform_over_positions_and_over_seeds():
    for numbers in (
        [uniform(4, "token", position) for position in range(10_000)],
        [uniform(seed, "accept", 9, 1) for seed in range(10_000)],
    ):
        counts, _ = np.histogram(numbers, bins=20, range=(0, 1))
        assert counts.sum() == 10_000
        assert ((counts - 500) ** 2 / 500).sum() < 43.8  # chi-square, 19 degrees of freedom, 0.1 %
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.033  # 0.1 % of 10,000 independent pairs
