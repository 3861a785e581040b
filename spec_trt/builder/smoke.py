"""A first run of a finished engine, before anyone relies on it."""

from pathlib import Path

import numpy as np

from spec_trt import names
from spec_trt.builder.onnxruntime_session import OrtGraph
from spec_trt.errors import BuildError

__all__ = ["smoke_test"]

_NODES = 4
_AGAIN = "the weights may be damaged, export again"


def smoke_test(path: Path, vocab: int) -> None:
    """Run one small pass of a base graph or of a draft head's.

    Args:
        path: The graph.
        vocab: How many token ids the target has.

    Raises:
        BackendError: ONNX Runtime does not load or run it.
        BuildError: It gives numbers that are not finite, or proposes tokens that the target does not have.
    """
    graph = OrtGraph(path)
    outputs = [item.name for item in graph.session.get_outputs()]
    ids = np.random.default_rng(0).integers(0, vocab, _NODES).tolist()
    for name, array in zip(outputs, graph.run(graph.feeds(ids), outputs), strict=True):
        if not np.isfinite(array).all():
            raise BuildError(f"{path.name} gives numbers that are not finite: {_AGAIN}")
        if name == names.TOKEN_IDS and not ((array >= 0) & (array < vocab)).all():
            raise BuildError(f"{path.name} proposes token {array.max()}, expected ids from 0 to {vocab - 1}: {_AGAIN}")
