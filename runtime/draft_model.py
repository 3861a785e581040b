"""The EAGLE draft model: its graph and cache, run over the target's true rows and its own tentative levels."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spec_trt import names
from spec_trt.manifest import EagleFacts, ModelFacts
from spec_trt.runtime.bound_graph import BoundGraph
from spec_trt.runtime.bound_passes import BoundPasses
from spec_trt.runtime.cache_memory import DTYPES, Rows, copied, joined_rows, new_mask, on_host
from spec_trt.runtime.fixed_shapes import FixedShapes
from spec_trt.runtime.kv_cache import KVCache
from spec_trt.runtime.pass_memory import PassRooms
from spec_trt.runtime.row_index import RowIndex
from spec_trt.runtime.session import Session

__all__ = ["DraftModel", "DraftStep"]

Numbers = Sequence[int] | NDArray[np.int64]

_MOST_WAITING = 1024
"""Rows that wait at the most while nothing is drafted: features take memory."""

_MOST_PARTS = 64
"""Parts of passes that are kept apart: each keeps its whole pass's features."""

_MOST_BOUND = 128
"""Sizes of passes that are kept bound."""

_UNFUSED = "unfused features"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftStep:
    """What some rows of the draft predict: the token two behind each row's feature.

    Attributes:
        level: 0 behind the newest token, and one more with every `expand`.
        token_ids: [rows, top_k] int64: the likeliest tokens, ids of the target, best first.
        log_probs: [rows, top_k] float32: of these tokens.
        features: [rows, hidden], on the host or not, until the next run: stands in for the target's feature in the rows
            that follow.
        visible: [rows, tentative] bool: the tentative rows that each of the rows sees.
        logits: [rows, draft_vocab], on the host or not: of all the draft's tokens, until the next run; None where not
            asked for.
    """

    level: int
    token_ids: NDArray[np.int64]
    log_probs: NDArray[np.float32]
    features: Any
    visible: NDArray[np.bool_]
    logits: Any = None


class DraftModel:
    """Drafts behind the target's committed rows (EAGLE: Li et al. 2024, arXiv 2401.15077, section 4.1).

    Row t of its cache is made of the target's feature at t and the token at t + 1, and has position t. `take` takes
    what such rows are made of; `extend` commits them and drafts behind the last of them. `expand` drafts on behind the
    nodes of a tree's level, their rows tentative: the next `extend` overwrites them. While nothing is drafted, rows may
    wait.

    Args:
        session: The `eagle` graph.
        facts: The draft model.
        target: The model it drafts for.
        fuse: The `eagle_fuse` graph of an EAGLE-3 head.
        chunk: Rows that `extend` runs in one pass at the most.
        cache_step: Rows the cache grows by at the least.
        fixed: What the graph's passes have in common, the chunk too; None where they may be of any size.
    """

    def __init__(
        self,
        session: Session,
        facts: EagleFacts,
        target: ModelFacts,
        *,
        fuse: Session | None = None,
        chunk: int = 64,
        cache_step: int = 64,
        fixed: FixedShapes | None = None,
    ) -> None:
        self.facts = facts
        self.needs = tuple(map(names.feature, range(len(facts.feature_layers)))) or (names.HIDDEN_STATES,)
        shape = replace(target, layers=facts.layers, kv_heads=facts.kv_heads, head_dim=facts.head_dim)
        capacity = None if fixed is None else fixed.capacity
        self.cache = KVCache(shape, step=cache_step, capacity=capacity, gives_back=True, device=session.device)
        self._session, self._fuse, self._fixed = session, fuse, fixed
        self._chunk = chunk if fixed is None else fixed.prefill_chunk
        self._dtype, self._target_hidden = DTYPES[target.dtype], target.hidden
        self._passes = BoundPasses[_PassSize, _Pass](self.cache, _MOST_BOUND)
        self._rooms = PassRooms(torch.empty(0, dtype=self._dtype, device=session.device))
        self._newest_feature = on_host(torch.zeros(1, facts.hidden, dtype=self._dtype, device=session.device))
        self._newest: DraftStep
        self._taken = deque[list[Any]]()  # of the rows to come, what each call of `take` gave of each that it needs
        self._tokens: list[int] = []  # behind each of these rows
        self._index = RowIndex(_MOST_WAITING, session.device)

    def reset(self, rows: int = 0, *, keep: int = 0) -> None:
        """Begin a sequence whose prompt makes `rows` rows, the first `keep` of which are there."""
        self.cache.reset(0, rows=rows, keep=keep)
        self.forget()

    def cut(self, rows: int) -> None:
        """Hold no more rows than so many, nor memory for many more."""
        self.cache.fit(rows)
        self._passes.forget_moved()

    def forget(self) -> None:
        """Let go of what was taken and not committed."""
        self._taken.clear()
        self._tokens.clear()

    @property
    def backlog(self) -> int:
        """Rows that the next `extend` commits."""
        return len(self._tokens)

    def take(
        self, features: Mapping[str, Rows], nodes: Sequence[int], tokens: Sequence[int], *, lasting: bool = False
    ) -> None:
        """Take the target's newest rows, for the next `extend` to commit; the oldest at once where many wait.

        Args:
            features: The base graph's outputs that `needs` names, [nodes of its pass, hidden] each.
            nodes: Which of the pass's nodes, at least one, in the order of their positions.
            tokens: The token that followed each of them.
            lasting: Whether the features stay as they are, so that they need not be copied; neighbouring nodes then.
        """
        sources = [on_host(features[name]) for name in self.needs]
        if lasting:
            self._taken.append([source[nodes[0] : nodes[-1] + 1] for source in sources])
        else:
            index = self._index.on_device(nodes)
            self._taken.append([source[index] for source in sources])
        self._tokens += tokens
        if len(self._taken) > _MOST_PARTS:  # which may be small parts of large passes
            self._taken.append(self._oldest(len(self._tokens)))
        if len(self._tokens) > max(_MOST_WAITING, self._chunk):
            self._commit_oldest()

    def extend(self, *, logits: bool = False) -> DraftStep:
        """Commit what was taken and draft behind the last row, in place of all tentative ones.

        Args:
            logits: Whether this step and those that expand it have the draft's logits.

        Returns:
            The last row's predictions; the next `extend` overwrites them.
        """
        if self._tokens:
            while len(self._tokens) > self._chunk:
                self._commit_oldest()
            last = len(self._tokens) - 1
            self._newest = self._last_row(self._commit_oldest(logits=logits), last)
        return self._newest

    def _commit_oldest(self, *, logits: bool = False) -> "_Pass":
        """Commit as many of the rows that were taken as one pass runs."""
        self.cache.truncate()
        count, first = min(len(self._tokens), self._chunk), int(self.cache.lengths[0])
        bound = self._bound(count, causal=True, logits=logits)
        bound.write_target_features(self._oldest(count), count)
        self._run(bound, self._tokens[:count], np.arange(first, first + count))
        self.cache.commit(bound.new_rows, [range(count)])
        del self._tokens[:count]
        return bound

    def _oldest(self, count: int) -> list[Any]:
        """Take the features of so many rows out of those that were taken: [count, hidden] of each that it needs."""
        parts: list[list[Any]] = []
        while count:
            part = self._taken.popleft()
            if len(part[0]) > count:
                self._taken.appendleft([feature[count:] for feature in part])
                part = [feature[:count] for feature in part]
            count -= len(part[0])
            parts.append(part)
        return parts[0] if len(parts) == 1 else [joined_rows(features) for features in zip(*parts, strict=True)]

    def expand(self, step: DraftStep, rows: Numbers, tokens: Numbers) -> DraftStep:
        """Draft behind some of the tokens that the newest step predicted.

        Args:
            step: The newest step, or that of the newest `extend` to begin again.
            rows: [nodes]: of each token, the row of the step that predicted it.
            tokens: [nodes]: the tokens.

        Returns:
            Their predictions; `extend`, and beginning again, overwrite them, the next run their features and logits.
        """
        if step.level == 0:
            self.cache.truncate()
        with_logits = step.logits is not None
        bound = self._bound(len(tokens), tentative=step.visible.shape[1], causal=False, logits=with_logits)
        visible = bound.show(step.visible[rows])
        bound.features[0] = step.features[bound.index.on_device(rows)]
        self._run(bound, tokens, int(self.cache.lengths[0]) + step.level)
        self.cache.append_tentative(bound.new_rows, [range(len(tokens))])
        return DraftStep(
            level=step.level + 1,
            token_ids=bound.graph.outputs[names.TOKEN_IDS][0],
            log_probs=bound.graph.outputs[names.LOG_PROBS][0],
            features=bound.next_features[0],
            visible=visible,
            logits=None if bound.logits is None else bound.logits[0],
        )

    def _run(self, bound: "_Pass", tokens: Numbers, positions: int | NDArray[np.int64]) -> None:
        inputs, nodes = bound.graph.inputs, len(tokens)
        inputs[names.INPUT_IDS][0, :nodes] = tokens
        inputs[names.POSITION_IDS][0, :nodes] = positions
        inputs[names.PAST_LENS][0] = self.cache.lengths[0]
        bound.graph.run()

    def _last_row(self, bound: "_Pass", row: int) -> DraftStep:
        """The last of a pass's rows but padding, in arrays of its own: levels follow."""
        self._newest_feature[0] = bound.next_features[0, row]
        return DraftStep(
            level=0,
            token_ids=bound.graph.outputs[names.TOKEN_IDS][0, row : row + 1].copy(),
            log_probs=bound.graph.outputs[names.LOG_PROBS][0, row : row + 1].copy(),
            features=self._newest_feature,
            visible=np.empty((1, 0), dtype=np.bool_),
            logits=None if bound.logits is None else copied(bound.logits[0, row : row + 1]),
        )

    def _bound(self, nodes: int, *, causal: bool, logits: bool, tentative: int = 0) -> "_Pass":
        """The graph bound for a pass of this size, for which the cache is made to have room."""
        self.cache.reserve(int(self.cache.lengths[0]) + tentative + nodes)
        if causal and self._fixed is not None:
            nodes = self._fixed.padded(nodes)
        window = self._window(nodes, tentative, causal=causal)
        size = _PassSize(nodes=nodes, window=window, causal=causal, logits=logits)
        return self._passes.get(size, self._bind)

    def _window(self, nodes: int, tentative: int, *, causal: bool) -> int:
        if self._fixed is None:
            return tentative + nodes
        return self._fixed.window(nodes, prefill=causal and nodes > self._fixed.max_nodes, tentative=tentative)

    def _bind(self, size: "_PassSize") -> "_Pass":
        features, next_features = (
            self._rooms.take(name, 1, size.nodes, self.facts.hidden, zeroed=True)
            for name in (names.FEATURES, names.NEXT_FEATURES)
        )
        outputs = {names.NEXT_FEATURES: next_features}
        if size.logits:
            outputs[names.DRAFT_LOGITS] = self._rooms.take(names.DRAFT_LOGITS, 1, size.nodes, self.facts.draft_vocab)
        new_rows = self.cache.new_rows(1, size.nodes)
        graph = BoundGraph(
            self._session,
            written=self._new_inputs(size),
            read=self._new_outputs(size),
            inputs={names.FEATURES: features, **self.cache.views()},
            outputs=outputs | self.cache.new_row_views(new_rows),
        )
        own = graph.inputs[names.TREE_MASK][0, :, -size.nodes :]
        own[:] = np.tri(size.nodes) if size.causal else np.eye(size.nodes)
        return _Pass(
            graph=graph,
            index=RowIndex(size.nodes, self._session.device),
            features=on_host(features),
            next_features=on_host(next_features),
            new_rows=on_host(new_rows),
            logits=outputs.get(names.DRAFT_LOGITS),
            fusion=self._bind_fusion(self._fuse, features) if self._fuse and size.causal else None,
        )

    def _bind_fusion(self, session: Session, fused: Tensor) -> "_Fusion":
        """EAGLE-3's fusion, which fills a pass's features."""
        features = self._rooms.take(_UNFUSED, 1, fused.shape[1], len(self.needs) * self._target_hidden, zeroed=True)
        graph = BoundGraph(
            session, written={}, read={}, inputs={names.FEATURES: features}, outputs={names.NEXT_FEATURES: fused}
        )
        return _Fusion(graph=graph, features=on_host(features))

    def _new_inputs(self, size: "_PassSize") -> dict[str, Tensor]:
        nodes, device = size.nodes, self._session.device
        return {
            names.INPUT_IDS: torch.zeros(1, nodes, dtype=torch.int64, device=device),
            names.POSITION_IDS: torch.zeros(1, nodes, dtype=torch.int64, device=device),
            names.PAST_LENS: torch.zeros(1, dtype=torch.int64, device=device),
            names.TREE_MASK: new_mask(1, nodes, size.window, device=device),
        }

    def _new_outputs(self, size: "_PassSize") -> dict[str, Tensor]:
        shape, device = (1, size.nodes, self.facts.top_k), self._session.device
        return {
            names.TOKEN_IDS: torch.zeros(shape, dtype=torch.int64, device=device),
            names.LOG_PROBS: torch.zeros(shape, dtype=torch.float32, device=device),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _PassSize:
    """What decides the shapes of a pass, but for the cache's own; `causal` rows see their earlier ones."""

    nodes: int
    window: int
    causal: bool
    logits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fusion:
    """EAGLE-3's graph from the target's features, side by side, to one."""

    graph: BoundGraph
    features: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """The graph tied to the tensors of one pass size, the large ones as `on_host` has them, but for the logits."""

    graph: BoundGraph
    index: RowIndex
    features: Any
    next_features: Any
    new_rows: Rows
    logits: Tensor | None
    fusion: _Fusion | None

    def show(self, earlier: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Let the nodes see earlier tentative rows.

        Args:
            earlier: [nodes, tentative]: which of them each node sees.

        Returns:
            [nodes, tentative + nodes]: these and the pass's own rows; the next call may overwrite it.
        """
        mask: NDArray[np.bool_] = self.graph.inputs[names.TREE_MASK][0]
        nodes, tentative = earlier.shape
        mask[:, :tentative] = earlier
        if tentative + nodes == mask.shape[1]:
            return mask
        mask[:, tentative:-nodes] = False
        return np.concatenate([earlier, mask[:, -nodes:]], axis=1)

    def write_target_features(self, sources: Sequence[Any], count: int) -> None:
        """Fill in the features of the target's first so many rows, fused where there are several."""
        if self.fusion is None:
            self.features[0, :count] = sources[0][:count]
            return
        width = sources[0].shape[-1]
        for index, source in enumerate(sources):
            self.fusion.features[0, :count, index * width : (index + 1) * width] = source[:count]
        self.fusion.graph.run()
