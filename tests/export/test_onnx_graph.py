"""Tracing: what can't be traced is said in one line, and what comes out is tidy."""

import pytest
from torch import Tensor

from spec_trt.errors import ExportError
from spec_trt.export.architecture import inspect_architecture, use_tree_attention
from spec_trt.export.attention import symbolic
from spec_trt.export.base_graph import BaseGraph
from spec_trt.export.onnx_graph import trace_base
from tests.families import make_config, make_model


class Branching(BaseGraph):
    """A graph whose course depends on the tokens."""

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        past_lens: Tensor,
        tree_mask: Tensor,
        logits_rows: Tensor,
        past: list[Tensor],
    ) -> list[Tensor]:
        if input_ids.sum() > 0:
            logits_rows = logits_rows * 0
        return super().forward(input_ids, position_ids, past_lens, tree_mask, logits_rows, past)


def test_data_dependent_control_flow_is_refused():
    graph = Branching(use_tree_attention(make_model("llama")), symbolic, windowed=False).eval()
    with pytest.raises(ExportError, match=r"llama could not be traced into ONNX: .*data-dependent") as caught:
        trace_base(graph, inspect_architecture(make_config("llama")))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_every_value_of_the_graph_has_a_name_of_its_own(family: str):
    architecture = inspect_architecture(make_config(family))
    graph = BaseGraph(use_tree_attention(make_model(family)), symbolic, windowed=architecture.windowed).eval()
    model = trace_base(graph, architecture)

    values = [value.name for node in model.graph for value in node.outputs]
    nodes = [node.name for node in model.graph]
    assert len(set(values)) == len(values)
    assert len(set(nodes)) == len(nodes)
    assert not [name for name in model.graph.initializers if name.startswith("model.model.")]
    assert list(model.functions) == [("spec_trt", "TreeAttention", "")]
