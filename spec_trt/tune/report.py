"""What tuning found: tables and JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spec_trt.table import format_table
from spec_trt.tune.attempt import RankPath
from spec_trt.tune.held_out import DEFAULT, PLAIN, TUNED, HeldOut

__all__ = ["MethodReport", "TreeReport", "TuneReport"]

_FEW_POSITIONS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeReport:
    """A tree, and what is expected of it.

    Attributes:
        paths: Paths of ranks.
        accept_length: Tokens per pass on the prompts fitted to, replayed.
        pass_ratio: What a pass of plain decoding costs over one with the whole tree, by the measured costs.
        held_out: What it did on the held-out prompts.
    """

    paths: Sequence[RankPath]
    accept_length: float
    pass_ratio: float
    held_out: HeldOut

    @property
    def depth(self) -> int:
        """Its levels."""
        return max(map(len, self.paths))

    def to_json(self, plain: HeldOut) -> dict[str, Any]:
        """The figures by name.

        The predicted ones are of the prompts fitted to, the others of those held out; `speedup_by_costs` is what the
        accept length there would give if passes cost what was measured. `nodes_per_pass` has the root too.
        """
        stats, (low, high) = self.held_out.stats, self.held_out.range_over(plain)
        return {
            "tree": [list(path) for path in self.paths],
            "nodes": len(self.paths),
            "depth": self.depth,
            "predicted_accept_length": self.accept_length,
            "predicted_speedup": self.accept_length * self.pass_ratio,
            "accept_length": stats.accept_length,
            "nodes_per_pass": stats.nodes / stats.passes,
            "speedup_by_costs": stats.accept_length * self.pass_ratio,
            "ms_per_token": self.held_out.mean_ms_per_token,
            "speedup": self.held_out.speedup_over(plain),
            "speedup_low": low,
            "speedup_high": high,
            "near_ties": self.held_out.near_ties,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodReport:
    """A method's default tree and its tuned one.

    Attributes:
        positions: Tokens before which the tree was tried.
        plain: Plain decoding of the held-out prompts.
        default: The tree that the head had.
        tuned: The tree found; None where none is quicker than the default one on the prompts fitted to.
        written: Whether the tuned tree is the engine's now.
    """

    positions: int
    plain: HeldOut
    default: TreeReport
    tuned: TreeReport | None
    written: bool = False

    @property
    def gain(self) -> float:
        """Tokens per second of the tuned tree over the default one's, on the held-out prompts."""
        return 1.0 if self.tuned is None else self.tuned.held_out.speedup_over(self.default.held_out)

    @property
    def is_better(self) -> bool:
        """Whether the tuned tree beat the default one on the held-out prompts."""
        return self.gain > 1.0

    def to_json(self) -> dict[str, Any]:
        """The figures by name; `tuned` is None where the default tree is the best one found."""
        return {
            "positions": self.positions,
            "plain_ms_per_token": self.plain.mean_ms_per_token,
            "default": self.default.to_json(self.plain),
            "tuned": None if self.tuned is None else self.tuned.to_json(self.plain),
            "gain": self.gain,
            "better": self.is_better,
            "written": self.written,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneReport:
    """All methods that were tuned.

    Attributes:
        fitted: Prompts fitted to.
        held_out: Prompts measured on.
        methods: By name.
    """

    fitted: int
    held_out: int
    methods: Mapping[str, MethodReport]

    def to_json(self) -> dict[str, Any]:
        """One object: `methods.<name>`, each with the same keys."""
        return {
            "prompts": {"fitted": self.fitted, "held_out": self.held_out},
            "methods": {name: report.to_json() for name, report in self.methods.items()},
        }

    def to_text(self) -> str:
        """A table per method, the tuned tree, and what to make of it; see `TreeReport.to_json`."""
        return "\n\n".join(self._text(name, report) for name, report in self.methods.items())

    def _text(self, name: str, report: MethodReport) -> str:
        title = f"{name}: {self.fitted} prompts fitted to, {self.held_out} held out"
        header = [title, "nodes", "depth", "predicted accept length", "predicted speedup"]
        plain_ms = f"{report.plain.mean_ms_per_token:.2f}"
        rows = [[PLAIN, "0", "0", "1.00", "1.00", "1.00", "1.00", plain_ms, "1.00", ""]]
        rows += [
            _row(tree_name, tree.to_json(report.plain))
            for tree_name, tree in ((DEFAULT, report.default), (TUNED, report.tuned))
            if tree is not None
        ]
        table = format_table([*header, "accept length", "by costs", "ms/token", "speedup", "(range)"], rows)
        return "\n".join([table, *_words(report)])


def _row(name: str, figures: Mapping[str, Any]) -> list[str]:
    return [
        name,
        str(figures["nodes"]),
        str(figures["depth"]),
        f"{figures['predicted_accept_length']:.2f}",
        f"{figures['predicted_speedup']:.2f}",
        f"{figures['accept_length']:.2f}",
        f"{figures['speedup_by_costs']:.2f}",
        f"{figures['ms_per_token']:.2f}",
        f"{figures['speedup']:.2f}",
        f"({figures['speedup_low']:.2f}-{figures['speedup_high']:.2f})",
    ]


def _words(report: MethodReport) -> list[str]:
    """What the figures mean, in a line each."""
    if report.tuned is None:
        words = ["no tree is quicker than the default one on the prompts fitted to: it stays"]
    else:
        words = [f"tuned tree: {[list(path) for path in report.tuned.paths]}", _verdict(report)]
    best = report.default if report.tuned is None or not report.is_better else report.tuned
    if best.held_out.speedup_over(report.plain) < 1:
        words.append("plain decoding is quicker on the held-out prompts")
    near_ties = max(tree.held_out.near_ties for tree in (report.default, report.tuned) if tree is not None)
    if near_ties:
        words.append(f"outputs equal plain decoding's but for near ties, in {near_ties} of the held-out prompts")
    if report.positions < _FEW_POSITIONS:
        words.append(f"only {report.positions} tokens were looked at: more prompts would fit the tree less to chance")
    return words


def _verdict(report: MethodReport) -> str:
    fate = "it is the engine's tree now" if report.written else "the engine keeps its tree"
    if report.is_better:
        return f"tuned is {report.gain:.3f} times as fast as default on the held-out prompts: {fate}"
    return f"tuned does NOT beat default on the held-out prompts ({report.gain:.3f} times as fast): {fate}"
