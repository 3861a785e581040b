import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_trt import names
from spec_trt.runtime import target as target_module
from spec_trt.runtime.target import Target
from spec_trt.runtime.tree import TreeBuilder, root_alone
from tests.runtime.fake_session import FakeSession, fake_facts
from tests.runtime.fakes import FakeTarget

MODEL = FakeTarget(vocab=16, order=3)


def make_target(**options):
    session = FakeSession(MODEL.next_token)
    return Target(session, fake_facts(), **options), session


def branching(root):
    builder = TreeBuilder(root)
    left, right = builder.add(0, 1), builder.add(0, 2)
    builder.add_chain(left, [3, 4])
    builder.add(right, 5)
    return builder.build()


@given(prompt=st.lists(st.integers(0, 15), min_size=1, max_size=30), chunk=st.integers(1, 9))
@settings(deadline=None, max_examples=50)
def test_every_node_answers_for_its_own_path(prompt, chunk):
    target, _ = make_target(prefill_chunk=chunk, cache_step=4)
    target.prefill(prompt[:-1])
    tree = branching(prompt[-1])
    verified = target.verify([tree])
    np.testing.assert_array_equal(verified.outputs[0].argmax, MODEL.argmax(prompt, tree))


def test_ragged_batch_with_padding_and_ragged_lengths():
    target, _ = make_target(batch=2, prefill_chunk=4)
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8, 9]]
    for slot, prompt in enumerate(prompts):
        target.prefill(prompt[:-1], slot=slot)
    trees = [branching(3), TreeBuilder(9).build()]
    verified = target.verify(trees)
    for prompt, tree, out in zip(prompts, trees, verified.outputs, strict=True):
        np.testing.assert_array_equal(out.argmax, MODEL.argmax(prompt, tree))
    target.cache.commit(verified.new_rows, [[0, 1], [0]])
    assert target.cache.lengths.tolist() == [4, 6]


def test_prefill_of_one_slot_leaves_the_others_alone():
    target, _ = make_target(batch=2)
    target.prefill([1, 2, 3], slot=1)
    before = target.cache.buffer[:, 1].clone()
    target.prefill([5, 6], slot=0)
    assert target.cache.lengths.tolist() == [2, 3]
    torch.testing.assert_close(target.cache.buffer[:, 1], before, rtol=0, atol=0)


def test_needed_outputs_come_for_every_token_of_the_prompt_and_the_tree():
    target, _ = make_target(prefill_chunk=2)
    out = target.prefill([1, 2, 3, 4, 5], {names.HIDDEN_STATES})
    assert out.tensors[names.HIDDEN_STATES][:, 0].tolist() == [1, 2, 3, 4, 5]
    verified = target.verify([branching(6)], {names.HIDDEN_STATES, names.LOGITS})
    assert verified.outputs[0].tensors[names.HIDDEN_STATES][:, 0].tolist() == branching(6).tokens.tolist()
    assert verified.outputs[0].tensors[names.LOGITS].argmax(-1).tolist() == verified.outputs[0].argmax.tolist()
    assert target.prefill([1, 2]) is None
    assert target.prefill([], {names.HIDDEN_STATES}) is None


def test_where_nothing_is_drafted_features_outlast_the_next_pass():
    target, _ = make_target(batch=2)
    needs = {names.HIDDEN_STATES, names.LOGITS}
    plain = target.verify([root_alone(3), root_alone(5)], needs).outputs
    assert all(out.lasting for out in plain)
    assert not any(out.lasting for out in target.verify([branching(6), root_alone(4)], needs).outputs)
    target.verify([root_alone(1), root_alone(2)], needs)
    assert [out.tensors[names.HIDDEN_STATES][:, 0].tolist() for out in plain] == [[3], [5]]


def test_a_pass_size_is_bound_once_per_capacity_until_the_memory_is_another(monkeypatch):
    target, session = make_target(cache_step=8)
    bound = []
    bind = session.bind

    def counted(inputs, outputs):
        bound.append(1)
        return bind(inputs, outputs)

    monkeypatch.setattr(session, "bind", counted)
    for token in range(6):
        verified = target.verify([TreeBuilder(token).build()])
        target.cache.commit(verified.new_rows, [[0]])
    assert len(bound) == 1
    del bound[:]
    target.cache.fit(1000)  # memory enough for what follows
    for rows, binds in ((8, 1), (24, 1), (8, 0), (24, 0), (16, 1), (24, 0)):
        target.cache.fit(rows)
        verified = target.verify([TreeBuilder(7).build()])
        assert verified.new_rows.shape[3] == 1
        assert len(bound) == binds, rows
        del bound[:]
    memory = target.cache.memory
    target.cache.fit(5000)
    assert target.cache.memory is not memory
    target.verify([TreeBuilder(7).build()])
    assert len(bound) == 1
    assert [capacity for _, _, capacity in target._passes.kept] == [target.cache.capacity]


def test_few_sizes_of_passes_are_kept_bound(monkeypatch):
    monkeypatch.setattr(target_module, "_MOST_BOUND", 3)
    target, _ = make_target(cache_step=64)
    for nodes in (1, 2, 3, 4, 1, 2):
        builder = TreeBuilder(5)
        builder.add_chain(0, [1] * (nodes - 1))
        tree = builder.build()
        np.testing.assert_array_equal(target.verify([tree]).outputs[0].argmax, MODEL.argmax([5], tree))
    assert [size.nodes for size, _, _ in target._passes.kept] == [4, 1, 2]
