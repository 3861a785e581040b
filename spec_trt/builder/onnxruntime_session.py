"""An engine's graph in plain ONNX Runtime, as the builder measures it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from spec_trt import names
from spec_trt.errors import BackendError
from spec_trt.ort import first_line, open_session

__all__ = ["OrtGraph"]

_CACHE_PREFIX = ("past_key", "past_value")


class OrtGraph:
    """A base graph or a draft head's, run on the CPU.

    Args:
        path: The ONNX file.
        threads: Threads inside one operator; the number of cores when None.

    Raises:
        BackendError: ONNX Runtime is missing or refuses the file.
    """

    def __init__(self, path: Path, *, threads: int | None = None) -> None:
        self.session = open_session(path, threads=threads)
        self.inputs = {item.name: item for item in self.session.get_inputs()}
        self.cache_names = [name for name in self.inputs if name.startswith(_CACHE_PREFIX) and name != names.PAST_LENS]

    def run(self, feeds: dict[str, np.ndarray], outputs: Sequence[str]) -> list[np.ndarray]:
        """Run the graph and return the named outputs.

        Raises:
            BackendError: ONNX Runtime fails.
        """
        try:
            return list(self.session.run(list(outputs), feeds))
        except Exception as error:  # ONNX Runtime raises its own, unrelated types
            raise BackendError(f"ONNX Runtime failed: {first_line(error)}") from error

    def run_text(self, ids: Sequence[int], outputs: Sequence[str]) -> list[np.ndarray]:
        """Run a text of one sequence in one causal pass over an empty cache, projecting every token."""
        return self.run(self.feeds(ids), outputs)

    def feeds(self, ids: Sequence[int], past: int = 0) -> dict[str, np.ndarray]:
        """Make the inputs of a causal pass of one sequence behind a full cache.

        Args:
            ids: The pass's tokens, one per node or row; a graph without `input_ids` takes their number.
            past: Rows of the cache, all committed.

        Returns:
            What this graph takes of: ids, positions, mask, a cache of zeros, hidden states or features (seeded
            normal numbers).
        """
        positions = np.arange(len(ids))[None]
        known = {
            names.INPUT_IDS: np.array([ids], np.int64),
            names.POSITION_IDS: past + positions,
            names.PAST_LENS: np.array([past], np.int64),
            names.TREE_MASK: np.tri(len(ids), dtype=np.bool_)[None],
            names.LOGITS_ROWS: positions,
            **self.cache(past),
        }
        return {name: known[name] if name in known else self._features(name, len(ids)) for name in self.inputs}

    def _features(self, name: str, nodes: int) -> np.ndarray:
        width = self.inputs[name].shape[-1]
        return np.random.default_rng(0).standard_normal((1, nodes, width), dtype=np.float32)

    def cache(self, past: int, batch: int = 1) -> dict[str, np.ndarray]:
        """Make buffers of zeros for every layer: [batch, kv_heads, past, head_dim] each."""
        shapes = {name: self.inputs[name].shape for name in self.cache_names}
        return {name: np.zeros((batch, shape[1], past, shape[3]), np.float32) for name, shape in shapes.items()}
