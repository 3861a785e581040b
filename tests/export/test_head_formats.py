"""Every checkpoint format, from its files to ONNX Runtime, against a plain forward on its tensors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from spec_trt import names
from spec_trt.export.heads import LoadedHeads
from spec_trt.heads.eagle_checkpoint import load_eagle
from spec_trt.heads.medusa_checkpoint import load_medusa
from tests.export.head_sessions import Outputs, open_graphs, run, run_chain
from tests.families import VOCAB, make_model, save_model
from tests.heads import checkpoints, reference
from tests.heads.checkpoints import DRAFT_IDS, HIDDEN, THETA, make_target

NODES, CUT = 40, 23  # positions past the 16 that the drafts' configs speak of
TOKENS = torch.arange(2 * NODES).view(2, NODES) * 37 % VOCAB
TOP_K = 10


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def assert_candidates(found: Outputs, logits: Tensor, draft_ids: list[int] | None) -> None:
    """Ids of the target and log-probabilities over the draft vocabulary, best first."""
    log_probs, rows = logits.log_softmax(-1).topk(TOP_K)
    ids = torch.tensor(range(VOCAB) if draft_ids is None else draft_ids)
    torch.testing.assert_close(found[names.LOG_PROBS], log_probs, atol=1e-4, rtol=1e-4)
    assert torch.equal(found[names.TOKEN_IDS], ids[rows])


def assert_draft(found: Outputs, expected: reference.Draft, draft_ids: list[int] | None) -> None:
    torch.testing.assert_close(found[names.DRAFT_LOGITS], expected.logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found[names.NEXT_FEATURES], expected.next_features, atol=1e-4, rtol=1e-4)
    assert_candidates(found, expected.logits, draft_ids)


def write_medusa2(directory: Path) -> checkpoints.Tensors:
    save_model(make_model("llama"), directory)
    return checkpoints.add_medusa_heads(directory, layers=2)


Writer = Callable[[Path], checkpoints.Tensors]
MEDUSA: dict[str, tuple[Writer, dict[str, Any]]] = {
    "v1": (checkpoints.write_medusa_v1, {}),
    "v2": (lambda path: checkpoints.write_medusa_v2(path, layers=2), {"layers": 2}),
    "medusa-2": (write_medusa2, {"layers": 2, "prefix": "medusa_head."}),
    "modelopt": (checkpoints.write_medusa_modelopt, {"prefix": "medusa_heads."}),
}


@pytest.mark.parametrize("form", MEDUSA)
def test_medusa(form: str, tmp_path: Path):
    target = make_target()
    writer, settings = MEDUSA[form]
    tensors = writer(tmp_path / "heads")
    loaded = load_medusa(tmp_path / "heads", target)
    session = open_graphs(LoadedHeads(medusa=loaded), tmp_path)[names.MEDUSA]

    for rows in (1, 7):
        states = draw(2, rows, HIDDEN)
        expected = reference.medusa(tensors, states, target.projection.weight, **settings)
        assert_candidates(run(session, {names.HIDDEN_STATES: states}), expected, None)


def test_medusa_with_a_reduced_vocabulary(tmp_path: Path):
    target = make_target()
    tensors = checkpoints.write_medusa_v2(tmp_path / "heads", draft_ids=DRAFT_IDS)
    session = open_graphs(LoadedHeads(medusa=load_medusa(tmp_path / "heads", target)), tmp_path)[names.MEDUSA]

    states = draw(1, 5, HIDDEN)
    expected = reference.medusa(tensors, states, target.projection.weight[DRAFT_IDS])
    assert_candidates(run(session, {names.HIDDEN_STATES: states}), expected, DRAFT_IDS)


@pytest.mark.parametrize(
    ("options", "draft_ids"),
    [({}, None), ({"bias": False, "embedding": False, "qkv_bias": True, "draft_ids": DRAFT_IDS}, DRAFT_IDS)],
    ids=["all", "slim"],
)
def test_eagle(options: dict[str, Any], draft_ids: list[int] | None, tmp_path: Path):
    target = make_target()
    tensors = checkpoints.write_eagle(tmp_path / "draft", **options)
    sessions = open_graphs(LoadedHeads(eagle=load_eagle(tmp_path / "draft", target)), tmp_path)
    assert list(sessions) == [names.EAGLE]

    features, embedding = draw(2, NODES, HIDDEN), tensors.get("embed_tokens.weight", target.embedding)
    lm_head = target.projection.weight[draft_ids or slice(None)]
    found = run_chain(sessions[names.EAGLE], TOKENS, features, cut=CUT)
    assert_draft(found, reference.eagle(tensors, embedding[TOKENS], features, lm_head, THETA), draft_ids)


EAGLE3: dict[str, tuple[Writer, dict[str, Any]]] = {
    "reference": (checkpoints.write_eagle3, {"first": "midlayer."}),
    "specforge": (
        lambda path: checkpoints.write_eagle3(path, fc_norm=True, norm_output=True),
        {"first": "midlayer.", "norm_output": True},
    ),
    "modelopt": (lambda path: checkpoints.write_eagle3_modelopt(path, reduced=False), {}),
    "speculators": (
        lambda path: checkpoints.write_speculators(path, norm_before_residual=True),
        {"norm_before_residual": True},
    ),
    "speculators, deeper": (
        lambda path: checkpoints.write_speculators(
            path,
            model_type="qwen3",
            norm_before_fc=True,
            more_layers=1,
            features=4,
            eagle_aux_hidden_state_layer_ids=[0, 1, 3, 6],
        ),
        {"more_layers": 1},
    ),
}


@pytest.mark.parametrize("form", EAGLE3)
def test_eagle3(form: str, tmp_path: Path):
    target = make_target()
    writer, settings = EAGLE3[form]
    tensors = writer(tmp_path / "draft")
    loaded = load_eagle(tmp_path / "draft", target)
    sessions = open_graphs(LoadedHeads(eagle=loaded), tmp_path)

    features = [draw(2, NODES, HIDDEN) * (1 + index) for index in range(len(loaded.draft.config.feature_layers))]
    fused = run(sessions[names.EAGLE_FUSE], {names.FEATURES: torch.cat(features, dim=-1)})[names.NEXT_FEATURES]
    expected = reference.fuse(tensors, features)
    torch.testing.assert_close(fused, expected, atol=1e-4, rtol=1e-4)

    embedding = tensors.get("embed_tokens.weight", target.embedding)
    lm_head = tensors.get("lm_head.weight", target.projection.weight)
    found = run_chain(sessions[names.EAGLE], TOKENS, fused, cut=CUT)
    draft = reference.eagle3(
        tensors, embedding[TOKENS], expected, lm_head, THETA, **({"first": "layers.0."} | settings)
    )
    assert_draft(found, draft, None if form == "modelopt" else DRAFT_IDS)
