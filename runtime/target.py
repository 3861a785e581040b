"""The target model: its base graph and cache, run over trees."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spec_trt import names
from spec_trt.manifest import ModelFacts
from spec_trt.runtime.bound_graph import BoundGraph
from spec_trt.runtime.bound_passes import BoundPasses
from spec_trt.runtime.cache_memory import DTYPES, Rows, copied, joined_rows, new_mask, on_host
from spec_trt.runtime.drafters.drafter import PassOutput
from spec_trt.runtime.fixed_shapes import FixedShapes
from spec_trt.runtime.kv_cache import KVCache
from spec_trt.runtime.pass_memory import PassRooms
from spec_trt.runtime.session import Session
from spec_trt.runtime.tree import Topology, Tree, TreeBuilder

__all__ = ["Target", "Verified", "joined"]

_MOST_BOUND = 256
"""Sizes of passes that are kept bound: batches of many sequences and trees of all sizes have more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """One pass over a batch of trees.

    Attributes:
        outputs: Per sequence, what the pass says about its tree's own nodes (padding cut off).
        new_rows: [2 * layers, batch, kv_heads, nodes, head_dim]; the next pass overwrites it.
    """

    outputs: list[PassOutput]
    new_rows: Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class _PassSize:
    """What decides the shapes of a pass, but for the cache's own."""

    slot: int
    batch: int
    nodes: int
    project: bool
    needs: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """The graph tied to the tensors of one pass size.

    Attributes:
        graph: The graph.
        outputs: What is handed out beyond argmax; a verify pass's features as `on_host` has them.
        argmax: [batch, nodes]; without columns where nothing is projected.
        new_rows: The cache's.
        written: Per sequence, the topology whose mask the inputs hold.
    """

    graph: BoundGraph
    outputs: dict[str, Rows]
    argmax: NDArray[np.int64]
    new_rows: Rows
    written: list[Topology | None]


class Target:
    """Verifies trees with the base graph, against a cache of committed rows.

    Attributes:
        facts: The model's shape.
        cache: The committed rows.
        prefill_chunk: Tokens that `read` takes at the most.

    Args:
        session: The base graph.
        facts: The model's shape.
        batch: Sequences held.
        prefill_chunk: Nodes of a prefill pass.
        cache_step: Rows the cache grows by at the least.
        cache_bytes: Memory that a growing cache stays within; any when None.
        fixed: What the graph's passes have in common, its prefill chunk too; None where they may be of any size.
    """

    def __init__(
        self,
        session: Session,
        facts: ModelFacts,
        *,
        batch: int = 1,
        prefill_chunk: int = 64,
        cache_step: int = 64,
        cache_bytes: int | None = None,
        fixed: FixedShapes | None = None,
    ) -> None:
        self.facts = facts
        self.cache = KVCache(
            facts,
            batch=batch,
            step=cache_step,
            capacity=None if fixed is None else fixed.capacity,
            limit_bytes=cache_bytes if fixed is None else None,
            device=session.device,
        )
        self._session, self._fixed = session, fixed
        self.prefill_chunk = prefill_chunk if fixed is None else fixed.prefill_chunk
        self._passes = BoundPasses[_PassSize, _Pass](self.cache, _MOST_BOUND)
        self._rooms = PassRooms(torch.empty(0, dtype=DTYPES[facts.dtype], device=session.device))

    def prefill(
        self, prompt: Sequence[int], needs: Collection[str] = frozenset(), *, slot: int = 0
    ) -> PassOutput | None:
        """Begin a sequence: run and commit its prompt in chunks, projecting no logits.

        Args:
            prompt: The tokens to commit; may be empty.
            needs: Graph outputs to keep of every token.
            slot: The sequence, which is reset first.

        Returns:
            The needed outputs, [len(prompt), ...] each and without argmaxes; None when there are none.
        """
        self.cache.reset(slot, rows=len(prompt))
        starts = range(0, len(prompt), self.prefill_chunk)
        return joined([self.read(prompt[start : start + self.prefill_chunk], needs, slot=slot) for start in starts])

    def read(self, tokens: Sequence[int], needs: Collection[str] = frozenset(), *, slot: int = 0) -> dict[str, Tensor]:
        """Append a part of a prompt to a sequence, as a causal chain.

        Args:
            tokens: From one to `prefill_chunk` of them.
            needs: Graph outputs to hand out.
            slot: The sequence.

        Returns:
            The needed outputs, [len(tokens), ...] each.
        """
        chain = _chain(tokens)
        verified = self._run([chain], needs, project=False, slot=slot)
        self.cache.commit(verified.new_rows, [range(len(chain))], slot=slot)
        return {name: copied(tensor) for name, tensor in verified.outputs[0].tensors.items()}

    def verify(self, trees: Sequence[Tree], needs: Collection[str] = frozenset()) -> Verified:
        """Run one pass over all nodes of one tree per sequence; commits nothing.

        Args:
            trees: [batch] trees, of the first sequences; each root continues its sequence's committed rows.
            needs: Graph outputs to hand out beyond argmax.
        """
        return self._run(trees, needs, project=True, slot=0)

    def _run(self, trees: Sequence[Tree], needs: Collection[str], *, project: bool, slot: int) -> Verified:
        nodes = max(len(tree) for tree in trees)
        if not project and self._fixed is not None:
            nodes = self._fixed.padded(nodes)
        size = _PassSize(slot=slot, batch=len(trees), nodes=nodes, project=project, needs=frozenset(needs))
        bound = self._passes.get(size, self._bind)
        lengths = self.cache.lengths[slot : slot + len(trees)]
        _write_pass(bound, trees, lengths)
        bound.graph.run()
        return Verified(outputs=_per_sequence(bound, trees, needs), new_rows=bound.new_rows)

    def _bind(self, size: _PassSize) -> _Pass:
        outputs, new_rows = self._new_outputs(size), self.cache.new_rows(size.batch, size.nodes)
        graph = BoundGraph(
            self._session,
            written=self._new_inputs(size),
            read=self._new_argmax(size),
            inputs=self.cache.views(size.slot, size.batch),
            outputs=outputs | self.cache.new_row_views(new_rows),
        )
        graph.inputs[names.TREE_MASK] = graph.inputs[names.TREE_MASK][:, :, -size.nodes :]  # before: no row's
        nothing = np.empty((size.batch, 0), dtype=np.int64)
        argmax = graph.outputs.get(names.ARGMAX, nothing)
        return _Pass(
            graph=graph,
            outputs={
                name: on_host(output) if size.project and name != names.LOGITS else output
                for name, output in outputs.items()
            },
            argmax=argmax,
            new_rows=on_host(new_rows),
            written=[None] * size.batch,
        )

    def _new_inputs(self, size: _PassSize) -> dict[str, Tensor]:
        batch, nodes, device = size.batch, size.nodes, self._session.device
        rows = torch.arange(nodes if size.project else 0, device=device)
        return {
            names.INPUT_IDS: torch.zeros(batch, nodes, dtype=torch.int64, device=device),
            names.POSITION_IDS: torch.zeros(batch, nodes, dtype=torch.int64, device=device),
            names.PAST_LENS: torch.zeros(batch, dtype=torch.int64, device=device),
            names.TREE_MASK: new_mask(batch, nodes, self._window(size), device=device),
            names.LOGITS_ROWS: rows.expand(batch, -1).contiguous(),
        }

    def _window(self, size: _PassSize) -> int:
        return size.nodes if self._fixed is None else self._fixed.window(size.nodes, prefill=not size.project)

    def _new_outputs(self, size: _PassSize) -> dict[str, Tensor]:
        return {name: self._rooms.take(name, size.batch, size.nodes, self._width(name)) for name in size.needs}

    def _new_argmax(self, size: _PassSize) -> dict[str, Tensor]:
        if not size.project:
            return {}
        return {names.ARGMAX: torch.empty(size.batch, size.nodes, dtype=torch.int64, device=self._session.device)}

    def _width(self, name: str) -> int:
        return self.facts.vocab if name == names.LOGITS else self.facts.hidden


def joined(parts: Sequence[Mapping[str, Tensor]]) -> PassOutput | None:
    """The outputs of a prompt's parts as those of one; None where there are none."""
    if not parts or not parts[0]:
        return None
    whole = parts[0] if len(parts) == 1 else {name: joined_rows([part[name] for part in parts]) for name in parts[0]}
    return PassOutput(argmax=np.empty(0, dtype=np.int64), tensors=dict(whole), lasting=True)


def _chain(tokens: Sequence[int]) -> Tree:
    builder = TreeBuilder(tokens[0])
    builder.add_chain(0, tokens[1:])
    return builder.build()


def _write_pass(bound: _Pass, trees: Sequence[Tree], lengths: np.ndarray) -> None:
    """Fill in what changes with every pass; padding nodes see themselves alone, at the root's position."""
    arrays = bound.graph.inputs
    arrays[names.PAST_LENS][:] = lengths
    for row, tree in enumerate(trees):
        size = len(tree)
        arrays[names.INPUT_IDS][row, :size] = tree.tokens
        arrays[names.POSITION_IDS][row] = lengths[row]
        if size > 1:
            arrays[names.POSITION_IDS][row, :size] += tree.depths
        if bound.written[row] is not tree.topology:
            _write_mask(arrays[names.TREE_MASK][row], tree)
            bound.written[row] = tree.topology


def _write_mask(mask: NDArray[np.bool_], tree: Tree) -> None:
    mask[:] = np.eye(len(mask), dtype=np.bool_)
    mask[: len(tree), : len(tree)] = tree.mask


def _per_sequence(bound: _Pass, trees: Sequence[Tree], needs: Collection[str]) -> list[PassOutput]:
    """Split a pass's outputs by sequence, as views of what the next pass overwrites.

    Where nothing was drafted, features last: they are copied at once, for less than every sequence's own copy takes.
    """
    lasting = bound.argmax.shape[1] == 1
    outputs = {
        name: copied(output) if lasting and name != names.LOGITS else output for name, output in bound.outputs.items()
    }
    return [
        PassOutput(
            argmax=bound.argmax[row, : len(tree)],
            tensors={name: outputs[name][row, : len(tree)] for name in needs},
            lasting=lasting,
        )
        for row, tree in enumerate(trees)
    ]
