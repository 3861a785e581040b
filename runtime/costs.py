"""What passes cost on a machine, measured by `spec-trt profile --save` and read by whoever sizes a tree."""

import json
import os
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from spec_trt.errors import ConfigError, ManifestError, SpecTrtError
from spec_trt.runtime.outlook import Worth

__all__ = ["COSTS_FILE", "COSTS_VERSION", "Costs", "DraftCost", "VerifyCost"]

COSTS_FILE = "costs.json"
COSTS_VERSION = 3  # version 2 had small passes up to a fifth too high

_ENDLESS = 1e12
"""Nothing that was measured is as large."""

Curve = tuple[Sequence[float], Sequence[float]]
Record = TypeVar("Record")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyCost:
    """One measured size of a verify pass.

    Attributes:
        batch: Sequences.
        nodes: Of each one's tree.
        past: Committed rows of each.
        ms: Milliseconds, the median.
    """

    batch: int
    nodes: int
    past: int
    ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftCost:
    """What a method's drafts cost one sequence: a pass that drafts L levels behind N nodes, fixed + L level + N node.

    Attributes:
        pass_ms: A pass's drafting with the method's default options, in real generations; and what the verify pass
            takes longer behind a head's graph.
        fixed_ms: Of a pass, however much is drafted, the longer verify pass included; None where it is not told apart.
        level_ms: Of every level behind the first, which needs no run of its own; None likewise.
        node_ms: Of every node that something is drafted behind, the root not counted; None likewise.
    """

    pass_ms: float
    fixed_ms: float | None = None
    level_ms: float | None = None
    node_ms: float | None = None


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The costs of one engine on one machine.

    Attributes:
        machine: Where they were measured, in words.
        threads: Threads inside one operator; None where there are none to set.
        precision: The engine's.
        verify: Verify passes, at least one.
        draft: By method.
        worth: By method, what its drafts were worth with its default options.
        overhead_ms: The loop's own time per pass of one sequence: all that is neither drafting nor the model.
        version: Of this format.

    Raises:
        ConfigError: There is no verify cost, or one makes no sense.
    """

    machine: str
    threads: int | None
    precision: str
    verify: Sequence[VerifyCost]
    draft: Mapping[str, DraftCost] = field(default_factory=dict)
    worth: Mapping[str, Worth] = field(default_factory=dict)
    overhead_ms: float = 0.0
    version: int = COSTS_VERSION

    def __post_init__(self) -> None:
        sizes = {(cost.batch, cost.nodes, cost.past) for cost in self.verify if cost.batch > 0 and cost.ms > 0}
        if not sizes or len(sizes) < len(self.verify):
            raise ConfigError(
                "costs need at least one verify pass, every size once, of batch >= 1 and more than 0 ms: "
                f"found {len(self.verify)}, {len(sizes)} of them sound; measure again"
            )

    def verify_ms(self, nodes: float, *, past: float, batch: int = 1) -> float:
        """Milliseconds of a verify pass: linear between the measured sizes, and beyond the largest.

        Up to the longest past and the largest batch that were measured, a larger tree never costs less.

        Args:
            nodes: Of the largest tree; a mean may have a fraction.
            past: Committed rows.
            batch: Sequences.
        """
        by_batch = [
            _between(list(curves), _rising([_between(*curve, nodes) for curve in curves.values()]), past)
            for curves in self._curves.values()
        ]
        return _between(list(self._curves), _rising(by_batch), batch)

    @property
    def largest_batch(self) -> int:
        """Sequences of the largest batch that was measured."""
        return max(self._curves)

    @cached_property
    def _curves(self) -> dict[int, dict[int, Curve]]:
        """By batch and past, nodes and milliseconds, all ascending."""
        found: dict[int, dict[int, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
        for cost in sorted(self.verify, key=lambda cost: (cost.batch, cost.past, cost.nodes)):
            found[cost.batch][cost.past].append((cost.nodes, cost.ms))
        return {
            batch: {
                past: ([nodes for nodes, _ in points], _rising([ms for _, ms in points]))
                for past, points in curves.items()
            }
            for batch, curves in found.items()
        }

    def save(self, directory: Path) -> None:
        """Write them beside an engine's manifest, whole or not at all.

        Raises:
            SpecTrtError: The directory can't be written.
        """
        path = directory / COSTS_FILE
        staging = path.with_name(f".{COSTS_FILE}.{os.getpid()}")
        try:
            staging.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
            staging.replace(path)
        except OSError as error:
            raise SpecTrtError(f"cannot write {path}: {error.strerror or error}; nothing was kept") from error
        finally:
            staging.unlink(missing_ok=True)

    @classmethod
    def load(cls, directory: Path) -> "Costs | None":
        """Read an engine directory's costs; None where none have been measured.

        Raises:
            ManifestError: They are damaged, or of another version.
        """
        path = directory / COSTS_FILE
        try:
            return _costs(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (ConfigError, OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ManifestError(
                f"{path} can't be read ({error}): run `spec-trt profile {directory} --save` again, or delete it"
            ) from error


def _costs(data: dict[str, Any]) -> Costs:
    if data["version"] != COSTS_VERSION:
        raise ValueError(f"expected version {COSTS_VERSION}, found {data['version']}")
    verify = [_record(VerifyCost, item) for item in data["verify"]]
    draft = {name: _record(DraftCost, item) for name, item in data["draft"].items()}
    worth = {name: _record(Worth, item) for name, item in data["worth"].items()}
    return _record(Costs, {**data, "verify": verify, "draft": draft, "worth": worth})


def _record(kind: type[Record], data: Mapping[str, Any]) -> Record:
    """Make a dataclass from its JSON object, numbers where numbers belong."""
    for item in fields(kind):  # type: ignore[arg-type]
        is_number = item.name.endswith("_ms") or item.name in {"ms", "batch", "nodes", "past", "calibration"}
        if is_number and item.name in data and not (data[item.name] is None and item.default is None):
            _check_number(item.name, data[item.name])
    return kind(**data)


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _ENDLESS:
        raise TypeError(f"expected a number from 0 on for {name}, found {value!r:.40}")


def _rising(values: Sequence[float]) -> list[float]:
    """The nearest sequence that never falls: neighbours in the wrong order become their mean (pool adjacent violators).

    Medians of a busy machine are out of order at times, and no larger pass is cheaper than a smaller one.
    """
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, count = value, 1
        while pools and pools[-1][0] > mean:
            earlier, size = pools.pop()
            mean, count = (earlier * size + mean * count) / (size + count), size + count
        pools.append((mean, count))
    return [mean for mean, count in pools for _ in range(count)]


def _between(places: Sequence[float], values: Sequence[float], place: float) -> float:
    """The value at a place: linear between its neighbours and beyond the last, the first value before the first."""
    if len(places) == 1 or place <= places[0]:
        return values[0]
    right = min(bisect_left(places, place), len(places) - 1)
    slope = (values[right] - values[right - 1]) / (places[right] - places[right - 1])
    return values[right] + slope * (place - places[right])
