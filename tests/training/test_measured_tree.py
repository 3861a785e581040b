from spec_trt.training.measured_tree import measured_tree


def test_too_few_rows_give_no_tree():
    ranks = [[0.5, 0.1], [0.4, 0.1]]
    assert measured_tree(ranks, [600, 499], levels=2, nodes=3) is None
    assert measured_tree(ranks, [600, 500], levels=2, nodes=3) == [[0], [1], [0, 0]]


def test_ranks_that_chance_put_in_another_order_are_not_followed():
    assert measured_tree([[0.2, 0.5, 0.1, 0.3]], [1000], levels=1, nodes=2) == [[0], [1]]


def test_levels_that_were_not_measured_count_as_the_last_one():
    tree = measured_tree([[0.9], [0.8]], [1000, 1000], levels=4, nodes=9)
    assert tree == [[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]]
