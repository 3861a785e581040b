"""The Medusa heads' graph, run on the hidden state behind the newest token."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from spec_trt import names
from spec_trt.manifest import MedusaFacts, ModelFacts
from spec_trt.runtime.bound_graph import BoundGraph
from spec_trt.runtime.cache_memory import DTYPES, Rows, copied, on_host
from spec_trt.runtime.session import Session

__all__ = ["MedusaDraft", "MedusaModel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MedusaDraft:
    """The likeliest tokens of every head, best first.

    Attributes:
        token_ids: [heads, top_k] int64, ids of the target.
        log_probs: [heads, top_k] float32.
    """

    token_ids: NDArray[np.int64]
    log_probs: NDArray[np.float32]


class MedusaModel:
    """The heads of a target.

    Args:
        session: The `medusa` graph.
        facts: The heads.
        target: The model they draft for.
    """

    def __init__(self, session: Session, facts: MedusaFacts, target: ModelFacts) -> None:
        self.facts = facts
        hidden_state = torch.zeros(1, 1, target.hidden, dtype=DTYPES[target.dtype], device=session.device)
        shape = (1, 1, facts.heads, facts.top_k)
        self._hidden_state, self._newest = on_host(hidden_state), on_host(hidden_state)[0, 0]
        self._graph = BoundGraph(
            session,
            written={},
            read={
                names.TOKEN_IDS: torch.zeros(shape, dtype=torch.int64, device=session.device),
                names.LOG_PROBS: torch.zeros(shape, dtype=torch.float32, device=session.device),
            },
            inputs={names.HIDDEN_STATES: hidden_state},
            outputs={},
        )

    def take(self, hidden_states: Rows, row: int, *, lasting: bool = False) -> None:
        """Take what the next `draft` is made of.

        Args:
            hidden_states: [rows, hidden], of a pass.
            row: That of the token before the newest; head h drafts the token h + 1 behind the newest.
            lasting: Whether they stay as they are, so that nothing need be copied.
        """
        newest = on_host(hidden_states)[row]
        self._newest = newest if lasting else copied(newest)

    def draft(self) -> MedusaDraft:
        """What every head finds likeliest; the next call overwrites it."""
        self._hidden_state[0, 0] = self._newest
        self._graph.run()
        outputs = self._graph.outputs
        return MedusaDraft(token_ids=outputs[names.TOKEN_IDS][0, 0], log_probs=outputs[names.LOG_PROBS][0, 0])
