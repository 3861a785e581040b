"""The shapes that a compiled engine fixes of every pass, so that from pass to pass only the nodes' number changes."""

from dataclasses import dataclass

from spec_trt.errors import BackendError

__all__ = ["FixedShapes"]


_FEWEST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedShapes:
    """What no pass of a graph may change; unused rows of the cache are never read, unused columns of the mask false.

    Attributes:
        capacity: Rows of every sequence's cache buffer.
        max_nodes: Nodes of a decode pass at the most.
        decode_window: Columns of a decode pass's mask.
        prefill_chunk: Nodes of a prefill pass at the most, and columns of its mask.
    """

    capacity: int
    max_nodes: int
    decode_window: int
    prefill_chunk: int

    def padded(self, nodes: int) -> int:
        """Nodes that a pass over a chunk of a text is given: of few sizes, as each is bound and compiled by itself."""
        return min(max(_FEWEST, 1 << (nodes - 1).bit_length()), self.prefill_chunk)

    def window(self, nodes: int, *, prefill: bool, tentative: int = 0) -> int:
        """Columns of a pass's mask.

        Args:
            nodes: Of the pass.
            prefill: Whether it is one over a chunk of the prompt.
            tentative: Earlier rows that it sees beside the committed ones.

        Raises:
            BackendError: The engine has no room for so many.
        """
        window, limit = (self.prefill_chunk, self.prefill_chunk) if prefill else (self.decode_window, self.max_nodes)
        if nodes > limit:
            raise BackendError(
                f"the engine takes passes of at most {limit} nodes, found {nodes}: "
                f"draft fewer, or build it again with --max-nodes {nodes}"
            )
        if tentative + nodes > window:
            raise BackendError(
                f"the engine has room for {window} drafted rows of one step, found {tentative + nodes}: "
                f"draft fewer, or build it again with --max-nodes {tentative + nodes}"
            )
        return window
