"""The Medusa graph: all heads over the target's last hidden states."""

from collections.abc import Sequence

import onnx_ir as ir
import torch
from torch import Tensor

from spec_trt import names
from spec_trt.export.candidates import Candidates
from spec_trt.export.named_graph import NamedGraph
from spec_trt.export.onnx_graph import trace
from spec_trt.heads.medusa import MedusaHeads

__all__ = ["MedusaGraph", "trace_medusa"]


class MedusaGraph(NamedGraph):
    """Medusa heads down to the tokens they propose.

    Args:
        heads: The heads.
        draft_ids: The target's id of each row of their projections; None where they are the same.
    """

    model: MedusaHeads

    def __init__(self, heads: MedusaHeads, draft_ids: Sequence[int] | None) -> None:
        super().__init__()
        self.model = heads
        self.candidates = Candidates(heads.config.draft_vocab, draft_ids)

    @property
    def input_names(self) -> list[str]:
        """The one input's name."""
        return [names.HIDDEN_STATES]

    @property
    def output_names(self) -> list[str]:
        """The outputs' names, in the order `forward` returns them."""
        return [names.TOKEN_IDS, names.LOG_PROBS]

    def forward(self, hidden_states: Tensor) -> list[Tensor]:
        """[batch, rows, hidden] -> token ids and log-probabilities [batch, rows, heads, top_k]."""
        return list(self.candidates(self.model(hidden_states)))


def trace_medusa(graph: MedusaGraph, dtype: torch.dtype) -> ir.Model:
    """Trace the graph; see `onnx_graph.trace`.

    Args:
        graph: The heads.
        dtype: Of the hidden states.

    Raises:
        ExportError: It could not be traced.
    """
    example = (torch.zeros(2, 3, graph.model.config.hidden, dtype=dtype),)
    return trace(graph, example, ({0: "batch", 1: "rows"},), title="Medusa")
