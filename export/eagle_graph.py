"""The EAGLE graphs: the draft model over a tree, and the fusion of EAGLE-3's features."""

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor

from spec_trt import names
from spec_trt.export.attention import Attend, AttentionCall
from spec_trt.export.candidates import Candidates
from spec_trt.export.function_body import tree_attention_function
from spec_trt.export.named_graph import NamedGraph
from spec_trt.export.onnx_graph import trace
from spec_trt.heads.eagle import EagleConfig, EagleDraft

__all__ = ["EagleFuseGraph", "EagleGraph", "trace_eagle", "trace_eagle_fuse"]


class EagleGraph(NamedGraph):
    """The draft model down to the tokens it proposes, with a cache buffer of its own.

    Args:
        draft: The draft model.
        draft_ids: The target's id of each row of its projection; None where they are the same.
        attend: What runs the op: `symbolic` while exporting, a reference elsewhere.
    """

    model: EagleDraft

    def __init__(self, draft: EagleDraft, draft_ids: Sequence[int] | None, attend: Attend) -> None:
        super().__init__()
        self.model = draft
        self.candidates = Candidates(draft.config.draft_vocab, draft_ids)
        self.attend = attend

    @property
    def input_names(self) -> list[str]:
        """The inputs' names, in the order `forward` takes them."""
        layers = range(self.model.config.layers)
        buffers = [name(layer) for layer in layers for name in (names.past_key, names.past_value)]
        return [names.INPUT_IDS, names.POSITION_IDS, names.FEATURES, names.PAST_LENS, names.TREE_MASK, *buffers]

    @property
    def output_names(self) -> list[str]:
        """The outputs' names, in the order `forward` returns them."""
        layers = range(self.model.config.layers)
        rows = [name(layer) for layer in layers for name in (names.new_key, names.new_value)]
        return [names.TOKEN_IDS, names.LOG_PROBS, names.NEXT_FEATURES, names.DRAFT_LOGITS, *rows]

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        features: Tensor,
        past_lens: Tensor,
        tree_mask: Tensor,
        past: list[Tensor],
    ) -> list[Tensor]:
        """Run one pass; shapes are those of `spec_trt.names`, and `past` has keys and values in turn."""
        new_rows: list[Tensor] = []

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            new_rows.extend((key, value))
            call = AttentionCall(
                query=query,
                key=key,
                value=value,
                past_key=past[2 * layer],
                past_value=past[2 * layer + 1],
                past_lens=past_lens,
                tree_mask=tree_mask,
                positions=None,
                scale=query.shape[-1] ** -0.5,
                softcap=0.0,
                sliding_window=0,
            )
            return self.attend(call)

        out = self.model(input_ids, features, position_ids, attend)
        return [*self.candidates(out.logits), out.next_features, out.logits, *new_rows]


class EagleFuseGraph(NamedGraph):
    """EAGLE-3's fusion: several features of the target as one.

    Args:
        draft: The draft model.
    """

    model: EagleDraft

    def __init__(self, draft: EagleDraft) -> None:
        super().__init__()
        self.model = draft

    @property
    def input_names(self) -> list[str]:
        """The one input's name."""
        return [names.FEATURES]

    @property
    def output_names(self) -> list[str]:
        """The one output's name."""
        return [names.NEXT_FEATURES]

    def forward(self, features: Tensor) -> list[Tensor]:
        """[batch, nodes, k * target_hidden] -> [batch, nodes, hidden]."""
        return [self.model.fuse(features)]


def trace_eagle(graph: EagleGraph, dtype: torch.dtype) -> ir.Model:
    """Trace the draft model; see `onnx_graph.trace`.

    Args:
        graph: The draft model, its attention written as `symbolic`.
        dtype: Of the features and the cache.

    Raises:
        ExportError: It could not be traced.
    """
    layers, nodes = graph.model.config.layers, {0: "batch", 1: "nodes"}
    mask, buffers = {**nodes, 2: "window"}, [{0: "batch", 2: "past"}] * (2 * layers)
    return trace(
        graph,
        _example(graph.model.config, dtype),
        (nodes, nodes, nodes, {0: "batch"}, mask, buffers),
        title="EAGLE",
        function=tree_attention_function(softcap=False, windowed=False),
    )


def trace_eagle_fuse(graph: EagleFuseGraph, dtype: torch.dtype) -> ir.Model:
    """Trace the fusion; arguments and errors as for `trace_eagle`."""
    config = graph.model.config
    example = (torch.zeros(2, 3, len(config.feature_layers) * config.target_hidden, dtype=dtype),)
    return trace(graph, example, ({0: "batch", 1: "nodes"},), title="EAGLE-3's fusion")


def _example(config: EagleConfig, dtype: torch.dtype) -> tuple[Any, ...]:
    """Inputs to trace with: every dimension its own size, none of them 0 or 1, all contiguous."""
    batch, nodes, window, past = 2, 3, 5, 7
    buffer = (batch, config.kv_heads, past, config.head_dim)
    return (
        torch.zeros(batch, nodes, dtype=torch.long),
        torch.zeros(batch, nodes, dtype=torch.long),
        torch.zeros(batch, nodes, config.hidden, dtype=dtype),
        torch.zeros(batch, dtype=torch.long),
        torch.ones(batch, nodes, window, dtype=torch.bool),
        [torch.zeros(buffer, dtype=dtype) for _ in range(2 * config.layers)],
    )
