"""The draft model's bookkeeping, beside the same PyTorch module run over whole texts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest
import torch

from spec_trt import names
from spec_trt.export.attention import AttentionCall
from spec_trt.export.torch_reference import reference
from spec_trt.heads.eagle import EagleConfig, EagleDraft
from spec_trt.heads.projection import Projection
from spec_trt.manifest import EagleFacts
from spec_trt.runtime import draft_model, kv_cache
from spec_trt.runtime.draft_model import DraftModel
from tests.runtime.fake_session import fake_facts

VOCAB, HIDDEN, TOP_K, LAYERS = 20, 8, 4, {1: 1, 3: 2}

Function = Callable[[Mapping[str, torch.Tensor]], Mapping[str, torch.Tensor]]


def extended(model, features, nodes, tokens, **options):
    model.take(features, nodes, tokens)
    return model.extend(**options)


def make_draft(version):
    torch.manual_seed(version)
    config = EagleConfig(
        version=version,
        hidden=HIDDEN,
        intermediate=12,
        heads=4,
        kv_heads=2,
        head_dim=4,
        target_hidden=HIDDEN,
        draft_vocab=VOCAB,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        max_positions=128,
        feature_layers=(1, 2, 3) if version == 3 else (),
        layers=LAYERS[version],
    )
    return EagleDraft(config, torch.randn(VOCAB, HIDDEN), Projection(torch.randn(VOCAB, HIDDEN))).eval()


@dataclass
class TorchSession:
    """A module as a session."""

    function: Function
    device = torch.device("cpu")

    def bind(self, inputs, outputs):
        return TorchBinding(self.function, inputs, outputs)


@dataclass
class TorchBinding:
    function: Function
    inputs: Mapping[str, torch.Tensor]
    outputs: Mapping[str, torch.Tensor]

    @torch.no_grad()
    def run(self):
        for name, tensor in self.function(self.inputs).items():
            if name in self.outputs:
                self.outputs[name].copy_(tensor)


def eagle_graph(draft):
    def run(inputs):
        outputs: dict[str, torch.Tensor] = {}

        def attend(layer, query, key, value):
            outputs.update({names.new_key(layer): key, names.new_value(layer): value})
            past = {"past_key": inputs[names.past_key(layer)], "past_value": inputs[names.past_value(layer)]}
            return reference(
                AttentionCall(
                    query=query,
                    key=key,
                    value=value,
                    **past,
                    past_lens=inputs[names.PAST_LENS],
                    tree_mask=inputs[names.TREE_MASK],
                    positions=None,
                    scale=query.shape[-1] ** -0.5,
                    softcap=0.0,
                    sliding_window=0,
                )
            )

        out = draft(inputs[names.INPUT_IDS], inputs[names.FEATURES], inputs[names.POSITION_IDS], attend)
        log_probs, token_ids = out.logits.log_softmax(-1).topk(TOP_K)
        outputs |= {names.TOKEN_IDS: token_ids, names.LOG_PROBS: log_probs}
        outputs |= {names.NEXT_FEATURES: out.next_features, names.DRAFT_LOGITS: out.logits}
        return outputs

    return run


def make_model(draft, **options):
    config = draft.config
    facts = EagleFacts(
        version=config.version,
        layers=config.layers,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        hidden=HIDDEN,
        feature_layers=list(config.feature_layers),
        top_k=TOP_K,
        draft_vocab=VOCAB,
        draft_ids=None,
        tree=[],
        source="test",
    )
    target = fake_facts(vocab=VOCAB, hidden=HIDDEN)
    fuse = TorchSession(lambda inputs: {names.NEXT_FEATURES: draft.fuse(inputs[names.FEATURES])})
    session = TorchSession(eagle_graph(draft))
    return DraftModel(session, facts, target, fuse=fuse if config.version == 3 else None, **options)


def target_features(model, count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(count, HIDDEN, generator=generator) for name in model.needs}


@torch.no_grad()
def chain_logits(draft, features, tokens, drafted):
    """What the module says behind a text and a chain of drafted tokens, run plainly, the chain on its own features."""

    def attend(_layer, query, key, value):
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)

    rows, ids = draft.fuse(torch.cat(list(features.values()), dim=-1))[None], list(tokens)
    for token in [*drafted, None]:
        out = draft(torch.tensor([ids]), rows, torch.arange(len(ids))[None], attend)
        rows, ids = torch.cat([rows, out.next_features[:, -1:]], dim=1), [*ids, token]
    return out.logits[0, -1]


def assert_predicts(step, row, logits):
    log_probs, token_ids = logits.log_softmax(-1).topk(TOP_K)
    assert step.token_ids[row].tolist() == token_ids.tolist()
    torch.testing.assert_close(torch.from_numpy(step.log_probs[row]), log_probs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("version", [1, 3])
def test_levels_predict_what_the_plain_module_does(version):
    draft = make_draft(version)
    model = make_model(draft, chunk=5, cache_step=4)
    tokens = [3 * number % VOCAB for number in range(12)]
    features = target_features(model, len(tokens))
    model.reset(len(tokens))
    first = extended(model, features, range(len(tokens)), tokens)
    assert_predicts(first, 0, chain_logits(draft, features, tokens, []))
    rows, chosen = torch.tensor([0, 0, 0]).numpy(), first.token_ids[0, [0, 1, 3]].tolist()
    second = model.expand(first, rows, chosen)
    for row, token in enumerate(chosen):
        assert_predicts(second, row, chain_logits(draft, features, tokens, [token]))
    rows = torch.tensor([2, 0, 2, 1]).numpy()
    deeper = second.token_ids[rows, [0, 2, 1, 1]].tolist()
    third = model.expand(second, rows, deeper)
    paths = [[chosen[row], token] for row, token in zip(rows, deeper, strict=True)]
    for row, path in enumerate(paths):
        assert_predicts(third, row, chain_logits(draft, features, tokens, path))
    last = third.token_ids[1, :2].tolist()
    fourth = model.expand(third, torch.tensor([1, 1]).numpy(), last)
    for row, token in enumerate(last):
        assert_predicts(fourth, row, chain_logits(draft, features, tokens, [*paths[1], token]))


def test_logits_come_on_request_at_every_level():
    draft = make_draft(1)
    model = make_model(draft, chunk=5)
    tokens = [3 * number % VOCAB for number in range(7)]
    features = target_features(model, len(tokens))
    model.reset(len(tokens))
    first = extended(model, features, range(len(tokens)), tokens, logits=True)
    second = model.expand(first, [0, 0], [4, 5])
    expected = [chain_logits(draft, features, tokens, drafted) for drafted in ([], [4], [5])]
    torch.testing.assert_close(torch.cat([first.logits, second.logits]), torch.stack(expected), rtol=1e-4, atol=1e-4)
    without = extended(model, features, [0], [6])
    assert without.logits is None
    assert model.expand(without, [0, 0], [4, 5]).logits is None


@pytest.mark.parametrize("version", [1, 3])
def test_after_rounds_of_drafting_the_cache_is_that_of_the_committed_text(version):
    draft = make_draft(version)
    model, fresh = (make_model(draft, chunk=6, cache_step=4) for _ in range(2))
    text: list[int] = []
    kept: dict[str, list[torch.Tensor]] = {name: [] for name in model.needs}
    for number, (count, levels) in enumerate([(9, [1]), (1, [4, 4]), (3, []), (2, [2, 3, 1]), (4, [2])]):
        source = target_features(model, count + 3, seed=number)
        nodes = [*range(count - 1), count + 1]  # rejected nodes lie between
        tokens = [(7 * number + node) % VOCAB for node in range(count)]
        step = extended(model, source, nodes, tokens)
        for width in levels:
            rows = torch.arange(width).numpy() % len(step.token_ids)
            step = model.expand(step, rows, step.token_ids[rows, 0])
        text += tokens
        for name, parts in kept.items():
            parts.append(source[name][nodes])
    features = {name: torch.cat(parts) for name, parts in kept.items()}
    model.cache.truncate()
    fresh.reset(len(text))
    fresh_step = extended(fresh, features, range(len(text)), text)
    assert model.cache.lengths.tolist() == fresh.cache.lengths.tolist() == [len(text)]
    caches = [held.cache.buffer[:, :, :, : len(text)] for held in (model, fresh)]
    torch.testing.assert_close(*caches, rtol=1e-5, atol=1e-5)
    assert_predicts(fresh_step, 0, chain_logits(draft, features, text, []))


@pytest.mark.parametrize("chunk", [4, 19, 64])
@pytest.mark.parametrize("lasting", [True, False])
@pytest.mark.parametrize("version", [1, 3])
def test_rows_that_waited_draft_as_those_that_did_not(version, lasting, chunk, monkeypatch):
    draft = make_draft(version)
    monkeypatch.setattr(draft_model, "_MOST_WAITING", 18)
    monkeypatch.setattr(draft_model, "_MOST_PARTS", 7)
    model, count = make_model(draft, chunk=chunk), 30
    most = max(18, chunk)
    tokens = [3 * number % VOCAB for number in range(count)]
    features = target_features(model, count)
    model.reset(count)
    for node in range(count):
        model.take(features, [node], tokens[node : node + 1], lasting=lasting)
        assert model.backlog + model.cache.lengths[0] == node + 1
        assert model.backlog <= most
        assert (model.cache.lengths[0] > 0) == (node >= most)
    assert_predicts(model.extend(), 0, chain_logits(draft, features, tokens, []))
    assert model.backlog == 0
    model.take(features, [0], tokens[:1])
    model.forget()
    assert (model.backlog, model.cache.lengths[0]) == (0, count)


def test_a_size_is_bound_once_per_capacity_until_the_memory_is_another(monkeypatch):
    model = make_model(make_draft(1), cache_step=8)
    bound = []
    bind = model._session.bind

    def counted(inputs, outputs):
        bound.append(1)
        return bind(inputs, outputs)

    monkeypatch.setattr(model._session, "bind", counted)
    features = target_features(model, 1)
    for token in range(8):
        extended(model, features, [0], [token])
    assert len(bound) == 1
    extended(model, features, [0], [9])
    assert (model.cache.capacity, len(bound)) == (16, 2)
    memory = model.cache.memory
    for _ in range(2):  # the memory of what was longer is little enough to be kept
        model.reset()
        extended(model, features, [0], [1])
        extended(model, target_features(model, 8), range(8), range(8))
        assert model.cache.capacity == 16
    assert model.cache.memory is memory
    assert len(bound) == 4  # at 8 rows anew in the memory of 16, and eight rows at once
    model.cache.fit(5000)
    assert model.cache.memory is not memory
    extended(model, features, [0], [1])
    assert [capacity for _, _, capacity in model._passes.kept] == [model.cache.capacity]


def test_an_idle_draft_keeps_little_memory(monkeypatch):
    monkeypatch.setattr(kv_cache, "_LITTLE_BYTES", 4000)
    model = make_model(make_draft(1), cache_step=8)
    extended(model, target_features(model, 60), range(60), [token % VOCAB for token in range(60)])
    before = model.cache.memory.nbytes
    model.cut(8)
    assert before > 4000 > model.cache.memory.nbytes
    assert not model._passes.kept  # which would hold the old memory


def test_few_sizes_are_kept_bound(monkeypatch):
    monkeypatch.setattr(draft_model, "_MOST_BOUND", 3)
    draft = make_draft(1)
    model = make_model(draft, cache_step=64)
    for count in (1, 2, 3, 4, 1, 2):
        model.reset()
        features, tokens = target_features(model, count), list(range(count))
        assert_predicts(extended(model, features, range(count), tokens), 0, chain_logits(draft, features, tokens, []))
    assert [size.nodes for size, _, _ in model._passes.kept] == [4, 1, 2]
