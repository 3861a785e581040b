"""Random tree passes, as the parity check feeds them to a graph."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spec_trt import names
from spec_trt.export.architecture import Architecture

__all__ = ["PassInputs", "PassShape", "draw_pass", "pass_shapes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassShape:
    """One pass to draw.

    Attributes:
        past_lens: Committed rows, per sequence; their number is the batch.
        past: Rows of the buffer.
        nodes: Nodes of the first sequence; each further one has one less, then padding.
        tentative: Rows after the committed ones that the mask's first columns speak of.
        rows: Logits rows.
        chain: Whether every node's parent is the one before it, as in a prefill chunk.
    """

    past_lens: tuple[int, ...]
    past: int
    nodes: int
    tentative: int = 0
    rows: int = 3
    chain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PassInputs:
    """The base graph's inputs; `past` holds keys and values in turn, in float32."""

    input_ids: Tensor
    position_ids: Tensor
    past_lens: Tensor
    tree_mask: Tensor
    logits_rows: Tensor
    past: list[Tensor]

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, list[Tensor]]:
        """The arguments of `BaseGraph.forward`."""
        return (
            self.input_ids,
            self.position_ids,
            self.past_lens,
            self.tree_mask,
            self.logits_rows,
            self.past,
        )

    def feeds(self) -> dict[str, NDArray[np.generic]]:
        """The inputs of an ONNX Runtime session."""
        feeds = {
            names.INPUT_IDS: self.input_ids,
            names.POSITION_IDS: self.position_ids,
            names.PAST_LENS: self.past_lens,
            names.TREE_MASK: self.tree_mask,
            names.LOGITS_ROWS: self.logits_rows,
        }
        for index, buffer in enumerate(self.past):
            name = names.past_value if index % 2 else names.past_key
            feeds[name(index // 2)] = buffer
        return {name: tensor.numpy() for name, tensor in feeds.items()}


def pass_shapes(sliding_window: int | None) -> Iterator[PassShape]:
    """The passes that a graph is checked with.

    Args:
        sliding_window: The shortest window of any layer; one pass goes beyond it, unless its cache
            would be huge.
    """
    yield PassShape(past_lens=(7, 3), past=9, nodes=6)  # ragged, padding nodes, unused buffer rows
    yield PassShape(past_lens=(5, 2), past=10, nodes=4, tentative=3)
    yield PassShape(past_lens=(0, 0), past=0, nodes=8, chain=True)  # the first chunk of a prompt
    yield PassShape(past_lens=(4, 1), past=4, nodes=5, rows=0, chain=True)
    yield PassShape(past_lens=(6,), past=6, nodes=1, rows=1)
    if sliding_window is not None and sliding_window <= 4096:
        yield PassShape(past_lens=(sliding_window + 5, 2), past=sliding_window + 6, nodes=4)


def draw_pass(shape: PassShape, architecture: Architecture, seed: int) -> PassInputs:
    """Draw the trees, tokens and cache rows of one pass.

    Uncommitted buffer rows hold large numbers, so that a graph which reads them shows it.
    """
    random = np.random.default_rng(seed)
    batch, nodes = len(shape.past_lens), shape.nodes
    past_lens = np.array(shape.past_lens)
    masks, depths = zip(*(_draw_tree(random, shape, nodes - index) for index in range(batch)), strict=True)
    positions = np.minimum(past_lens[:, None] + np.stack(depths), architecture.max_positions - 1)
    return PassInputs(
        input_ids=torch.from_numpy(random.integers(architecture.vocab, size=(batch, nodes))),
        position_ids=torch.from_numpy(positions),
        past_lens=torch.from_numpy(past_lens),
        tree_mask=torch.from_numpy(np.stack(masks)),
        logits_rows=torch.from_numpy(random.integers(nodes, size=(batch, shape.rows))),
        past=[_draw_buffer(random, shape, architecture) for _ in range(2 * architecture.layers)],
    )


def _draw_tree(random: np.random.Generator, shape: PassShape, real: int) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """A tree of `real` nodes, then padding: its mask [nodes, window] and depths [nodes]."""
    own = np.eye(shape.nodes, dtype=np.bool_)
    depth = np.zeros(shape.nodes, dtype=np.int64)
    for node in range(1, max(real, 1)):
        parent = node - 1 if shape.chain else int(random.integers(node))
        own[node] |= own[parent]
        depth[node] = depth[parent] + 1
    tentative = random.random((shape.nodes, shape.tentative)) < 0.5
    return np.concatenate([tentative, own], axis=1), depth


def _draw_buffer(random: np.random.Generator, shape: PassShape, architecture: Architecture) -> Tensor:
    size = (len(shape.past_lens), architecture.kv_heads, shape.past, architecture.head_dim)
    rows = random.standard_normal(size, dtype=np.float32)
    for index, committed in enumerate(shape.past_lens):
        rows[index, :, committed + shape.tentative :] *= 1000
    return torch.from_numpy(rows)
