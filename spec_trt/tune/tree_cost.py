"""What a pass costs that drafts and verifies a static tree."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from spec_trt.errors import ConfigError
from spec_trt.runtime.costs import Costs
from spec_trt.tune.attempt import RankPath

__all__ = ["TreeCost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeCost:
    """The costs of a method, as measured on a machine.

    Attributes:
        plain_ms: A pass of plain decoding.
        verify_ms: Of a pass with so many nodes below the root, from none on; never falling.
        fixed_ms: Of a pass, whatever its tree: drafting, and the loop's own time.
        level_ms: Of every level behind the first.
        node_ms: Of every node that something is drafted behind, the root not counted.
    """

    plain_ms: float
    verify_ms: Sequence[float]
    fixed_ms: float
    level_ms: float = 0.0
    node_ms: float = 0.0

    @classmethod
    def of(cls, costs: Costs, method: str, *, past: float, nodes: int) -> "TreeCost":
        """A method's costs, for one sequence.

        Args:
            costs: The engine's.
            method: Its name.
            past: Committed rows, the mean.
            nodes: Below the root, of the largest tree.

        Raises:
            ConfigError: The method's drafts were not measured.
        """
        draft = costs.draft.get(method)
        if draft is None:
            raise ConfigError(
                f"the engine's costs have none of {method}'s drafts (of {', '.join(costs.draft) or 'no method'} only): "
                f"measure them with `spec-trt profile ENGINE --save`"
            )
        verify = [costs.verify_ms(count, past=past) for count in range(1, nodes + 2)]
        return cls(
            plain_ms=verify[0] + costs.overhead_ms,
            verify_ms=verify,
            fixed_ms=costs.overhead_ms + (draft.pass_ms if draft.fixed_ms is None else draft.fixed_ms),
            level_ms=draft.level_ms or 0.0,
            node_ms=draft.node_ms or 0.0,
        )

    def pass_ms(self, tree: Collection[RankPath]) -> float:
        """Milliseconds of a pass with a tree."""
        depth = max(map(len, tree), default=0)
        inner = {path[:-1] for path in tree} - {()}
        drafting = self.fixed_ms + self.level_ms * max(0, depth - 1) + self.node_ms * len(inner)
        return drafting + self.verify_ms[len(tree)]
