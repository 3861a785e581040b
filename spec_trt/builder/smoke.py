"""A first run of a finished engine, before anyone relies on it."""

from pathlib import Path

import numpy as np

from spec_trt import names
from spec_trt.builder.onnxruntime_session import OrtGraph
from spec_trt.errors import BuildError

__all__ = ["smoke_test"]

_NODES = 4


def smoke_test(path: Path, vocab: int) -> None:
    """Run one small pass of a base graph.

    Args:
        path: The graph.
        vocab: How many token ids there are.

    Raises:
        BackendError: ONNX Runtime does not load or run it.
        BuildError: It gives numbers that are not finite.
    """
    ids = np.random.default_rng(0).integers(0, vocab, _NODES).tolist()
    for output in OrtGraph(path).run_text(ids, [names.LOGITS, names.HIDDEN_STATES]):
        if not np.isfinite(output).all():
            raise BuildError(f"{path.name} gives numbers that are not finite: the weights may be damaged, export again")
