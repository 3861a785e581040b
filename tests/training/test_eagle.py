import pytest
import torch
from torch import nn

from spec_trt.errors import ModelError
from spec_trt.heads.target import head_target
from spec_trt.training.base import FrozenBase, shift_left
from spec_trt.training.config import EagleSettings
from spec_trt.training.eagle import EagleTraining, new_eagle
from spec_trt.training.row_loss import cross_entropy_sum
from spec_trt.training.trainer import pad_batch
from spec_trt.training.unroll_attention import UnrollAttention
from tests.families import VOCAB, make_model

DRAFT_IDS = list(range(0, VOCAB, 2))


@pytest.fixture(scope="module")
def model():
    return make_model("llama", num_hidden_layers=7).requires_grad_(False)


def batch(lengths=(12, 9)):
    generator = torch.Generator().manual_seed(0)
    examples = []
    for index, length in enumerate(lengths):
        ids = torch.randint(VOCAB, (length,), generator=generator).tolist()
        examples.append({"input_ids": ids, "loss_mask": [place >= 3 for place in range(length)], "index": index})
    return pad_batch(examples)


def training(model, settings, draft_ids=DRAFT_IDS):
    torch.manual_seed(0)
    target = head_target(model)
    draft = new_eagle(target, model.config, draft_ids, settings.version)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    base = FrozenBase(model, feature_layers=draft.config.feature_layers)
    return EagleTraining(draft, base, draft_ids, settings, bf16=False).eval()


def naive_attention(query, key, value, mask):
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ value


def test_unrolled_attention_equals_one_with_a_full_mask():
    generator = torch.Generator().manual_seed(0)
    nodes, attend = 7, UnrollAttention()
    rows = [
        tuple(torch.randn(2, heads, nodes, 8, generator=generator, dtype=torch.float64) for heads in (4, 2, 2))
        for _ in range(3)
    ]
    for step, (query, key, value) in enumerate(rows):
        seen = rows[: step + 1]
        causal, own = torch.ones(nodes, nodes).tril().bool(), torch.eye(nodes).bool()
        expected = naive_attention(
            query,
            torch.cat([row[1] for row in seen], dim=2),
            torch.cat([row[2] for row in seen], dim=2),
            torch.cat([causal] + [own] * step, dim=1),
        )
        assert torch.allclose(attend(0, query, key, value), expected)


def test_layers_of_a_deeper_draft_are_kept_apart():
    generator = torch.Generator().manual_seed(0)
    attend = UnrollAttention()
    query, key, value = (torch.randn(1, 2, 5, 4, generator=generator) for _ in range(3))
    first = attend(0, query, key, value)
    assert torch.equal(attend(1, query, key, value), first)


def causal(_layer, query, key, value):
    return nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)


def drafted(module, model, ids, column, steps):
    """What a draft at work would make of one column: a chain that grows by its own outputs."""
    draft = module.draft
    features = draft.fuse(base_features(module, model, ids))[:, : column + 1]
    tokens, outputs = ids[:, 1 : column + 2], []
    for step in range(steps):
        positions = torch.arange(features.shape[1])[None]
        states = draft.run_layers(tokens, features, positions, causal)
        projected, fed_back = draft.read_out(states)
        outputs.append((draft.projection(projected)[0, -1], fed_back[0, -1]))
        features = torch.cat([features, fed_back[:, -1:]], dim=1)
        following = column + 2 + step
        if following == ids.shape[1]:
            break
        tokens = torch.cat([tokens, ids[:, following : following + 1]], dim=1)
    return outputs


def base_features(module, model, ids):
    output = model.base_model(ids, output_hidden_states=True)
    layers = module.draft.config.feature_layers
    if not layers:
        return output.last_hidden_state
    return torch.cat([output.hidden_states[layer] for layer in layers], dim=-1)


@pytest.mark.parametrize("version", [1, 3])
def test_an_unrolled_step_is_what_the_draft_does_at_work(model, version):
    settings = EagleSettings(version=version, unroll=3, feature_weight=0.5, token_weight=0.3)
    module, inputs = training(model, settings), batch((12,))
    ids, mask = inputs["input_ids"], inputs["loss_mask"]
    with torch.no_grad():
        expected = naive_loss(module, model, settings, ids, mask)
        assert float(module(**inputs)["loss"]) == pytest.approx(float(expected), rel=1e-2)  # distributions are in bf16


def naive_loss(module, model, settings, ids, mask):
    """The definition, one column at a time (ALGORITHMS: inputs, targets and mask shifted by the step)."""
    output = model(ids, output_hidden_states=True)
    final, logits = model.base_model(ids).last_hidden_state[0], output.logits[0]
    nodes, total = ids.shape[1], torch.zeros(())
    columns = [drafted(module, model, ids, column, 3) for column in range(nodes - 1)]
    for step in range(settings.unroll):
        tokens, features = [], []
        for column in range(nodes - 2 - step):
            position = column + 1 + step
            if not mask[0, position + 1]:
                continue
            own_logits, own_feature = columns[column][step]
            features.append(nn.functional.smooth_l1_loss(own_feature, final[position]))
            if int(logits[position].argmax()) in DRAFT_IDS:
                wanted = logits[position][DRAFT_IDS].softmax(-1)
                tokens.append(nn.functional.cross_entropy(own_logits[None], wanted[None]))
        loss = settings.token_weight * torch.stack(tokens).mean()
        if settings.version == 1:
            loss = loss + settings.feature_weight * torch.stack(features).mean()
        total = total + settings.decay**step * loss
    return total


@pytest.mark.parametrize("version", [1, 3])
def test_padding_and_prompts_carry_no_loss(model, version):
    module, inputs = training(model, EagleSettings(version=version, noise=0)), batch()
    loss = module(**inputs)["loss"]
    changed = dict(inputs)
    changed["input_ids"] = inputs["input_ids"].masked_fill(~inputs["attention_mask"], 7)
    assert torch.equal(module(**changed)["loss"], loss)
    nothing = dict(inputs, loss_mask=torch.zeros_like(inputs["loss_mask"]))
    assert float(module(**nothing)["loss"].detach()) == 0


def test_accuracy_counts_rows_whose_token_cannot_be_drafted_as_misses(model):
    inputs = batch()
    some, none = (training(model, EagleSettings(), draft_ids=ids) for ids in (None, [0, 1]))
    rows = [int(shift_left(inputs["loss_mask"], shift).sum()) for shift in (2, 3, 4)]
    assert some.measure(**inputs).rows.tolist() == none.measure(**inputs).rows.tolist() == rows
    best = model(inputs["input_ids"]).logits.argmax(-1)
    draftable = int((shift_left(best, 1)[shift_left(inputs["loss_mask"], 2)] < 2).sum())
    assert int(none.measure(**inputs).hits[0, 1]) == draftable  # both ids are among the best four


def test_a_new_draft_passes_features_through(model):
    target = head_target(model)
    draft = new_eagle(target, model.config, None, 1)
    features = torch.randn(1, 6, 32)
    with torch.no_grad():
        output = draft(torch.ones(1, 6, dtype=torch.int64), features, torch.arange(6)[None], causal)
    assert float((output.next_features - features).abs().mean()) < 0.2 * float(features.abs().mean())


def test_a_target_whose_lm_head_is_narrower_than_its_layers_is_nothing_for_eagle3():
    narrow = make_model("opt", num_hidden_layers=7)
    with pytest.raises(ModelError, match="the target's are 32 wide, its lm_head reads 24"):
        new_eagle(head_target(narrow), narrow.config, None, 3)


@pytest.mark.parametrize("kind", ["ids", "distributions"])
def test_cross_entropy_by_chunks_equals_the_whole(kind):
    projection = head_target(make_model("gemma2", vocab_size=40)).projection
    hidden = torch.randn(300, 32, requires_grad=True)
    pick = torch.randint(50, (300,))
    target = torch.randint(40, (50,)) if kind == "ids" else torch.randn(50, 40).softmax(-1)
    loss = cross_entropy_sum(hidden, projection, target, pick) * 0.5
    loss.backward()
    other = hidden.detach().clone().requires_grad_()
    expected = nn.functional.cross_entropy(projection(other), target[pick], reduction="sum") * 0.5
    expected.backward()
    assert torch.allclose(loss, expected)
    assert hidden.grad is not None
    assert other.grad is not None
    assert torch.allclose(hidden.grad, other.grad, atol=1e-6)
