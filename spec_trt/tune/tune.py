"""Tree tuning from end to end: record, fit, measure on held-out prompts, write."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from spec_trt.errors import ConfigError, DataError
from spec_trt.manifest import EagleFacts, Manifest, MedusaFacts
from spec_trt.runtime.costs import Costs
from spec_trt.runtime.engine import Engine
from spec_trt.runtime.generation import GenerationConfig
from spec_trt.tune.attempt import RankPath
from spec_trt.tune.config import TuneConfig, static_tree_methods
from spec_trt.tune.engine_tree import head_facts, write_tree
from spec_trt.tune.fit import fit_tree
from spec_trt.tune.held_out import DEFAULT, PLAIN, TUNED, HeldOut, measure_held_out, split_prompts
from spec_trt.tune.replay import replay
from spec_trt.tune.report import MethodReport, TreeReport, TuneReport
from spec_trt.tune.trace import Trace, mean_past, record_traces
from spec_trt.tune.tree_cost import TreeCost
from spec_trt.tune.tree_file import tree_file
from spec_trt.tune.wide_tree import wide_tree

__all__ = ["chosen_methods", "load_costs", "planned_generations", "tune_trees", "write_trees"]

_WIDE_NODES = 128
_LEVELS = 8
"""Nodes and levels of the wide tree; Medusa's has a level per head."""


def load_costs(directory: Path) -> Costs:
    """What passes cost on this machine.

    Raises:
        ConfigError: Nobody has measured it.
        ManifestError: The file is damaged.
    """
    costs = Costs.load(directory)
    if costs is None:
        raise ConfigError(
            f"{directory} has no measured costs, by which a tree is chosen: "
            f"measure them with `spec-trt profile {directory} --save`"
        )
    return costs


def chosen_methods(manifest: Manifest, config: TuneConfig) -> list[str]:
    """The methods to tune.

    Raises:
        ConfigError: The engine has no head for one, or none at all.
    """
    able = [name for name in static_tree_methods() if head_facts(manifest, name) is not None]
    methods = list(config.methods or able)
    unfit = [name for name in methods if name not in able]
    if unfit or not methods:
        raise ConfigError(
            f"tuning needs a trained head: the engine has one for {', '.join(able) or 'no method'}, "
            f"found {', '.join(unfit) or 'nothing else to tune'}; "
            "export the heads with the model and build it again"
        )
    return methods


def planned_generations(prompts: int, methods: int, config: TuneConfig) -> int:
    """How often `tune_trees` calls back at the most: it measures no tuned tree where the default one is the best."""
    fitted, held_out = split_prompts([[]] * prompts)
    return methods * (len(fitted) + 3 * config.repeats * len(held_out))


def tune_trees(
    engine: Engine,
    prompts: Sequence[list[int]],
    costs: Costs,
    methods: Sequence[str],
    config: TuneConfig,
    on_generation: Callable[[], object] = lambda: None,
) -> TuneReport:
    """Find each method's best tree and measure it; nothing is written.

    Args:
        engine: The engine; idle.
        prompts: Token ids.
        costs: What passes cost.
        methods: From `chosen_methods`.
        config: What is asked for.
        on_generation: Called after each generation.

    Raises:
        DataError: There are too few prompts to hold one out.
        ConfigError: The costs lack a method.
        SpecTrtError: An output was not plain decoding's.
    """
    fitted, held_out = split_prompts(prompts)
    if not held_out:
        raise DataError(f"tuning holds out every fourth prompt: expected 4 or more, found {len(prompts)}; add some")
    for method in methods:  # what is missing is known before an hour of runs
        TreeCost.of(costs, method, past=1, nodes=1)
    job = _Job(engine=engine, fitted=fitted, held_out=held_out, costs=costs, config=config, tick=on_generation)
    return TuneReport(
        fitted=len(fitted), held_out=len(held_out), methods={method: job.tune(method) for method in methods}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What all methods are tuned by; see `tune_trees`."""

    engine: Engine
    fitted: Sequence[list[int]]
    held_out: Sequence[list[int]]
    costs: Costs
    config: TuneConfig
    tick: Callable[[], object]

    def tune(self, method: str) -> MethodReport:
        """One method's trees."""
        facts = head_facts(self.engine.manifest, method)
        assert facts is not None  # `chosen_methods` has seen it
        default = [tuple(path) for path in facts.tree]
        candidates = self._candidates(facts)
        traces = record_traces(self.engine, self.fitted, candidates, self._run(method), self.tick)
        cost = TreeCost.of(self.costs, method, past=mean_past(traces), nodes=len(candidates))
        nodes = min(self.config.max_nodes, self._room)
        tuned = fit_tree(traces, default, candidates, cost, nodes=nodes)
        trees = {DEFAULT: default} if set(tuned) == set(default) else {DEFAULT: default, TUNED: tuned}
        measured = self._measure(method, trees)
        reports = {name: _tree_report(tree, traces, cost, measured[name]) for name, tree in trees.items()}
        return MethodReport(
            positions=sum(len(trace.attempts) for trace in traces),
            plain=measured[PLAIN],
            default=reports[DEFAULT],
            tuned=reports.get(TUNED),
        )

    @property
    def _room(self) -> int:
        """Nodes below a root that the engine has room for, as far as it was built for a number of them."""
        built = self.engine.manifest.engine.tensorrt if self.engine.manifest.engine else None
        return _WIDE_NODES if built is None else built.max_nodes - 1

    def _candidates(self, facts: MedusaFacts | EagleFacts) -> list[RankPath]:
        depth = facts.heads if isinstance(facts, MedusaFacts) else _LEVELS
        return wide_tree(facts.tree, ranks=facts.top_k, depth=depth, nodes=min(_WIDE_NODES, self._room))

    def _run(self, method: str) -> GenerationConfig:
        return GenerationConfig(
            method=method,
            sampling=self.config.sampling,
            max_new_tokens=self.config.max_new_tokens,
            budget=self.config.budget,
        )

    def _measure(self, method: str, trees: dict[str, list[RankPath]]) -> dict[str, HeldOut]:
        runs = {PLAIN: self._run("autoregressive"), DEFAULT: self._run(method)}
        with tree_file(trees.get(TUNED, [])) as file:
            if TUNED in trees:
                runs[TUNED] = replace(runs[DEFAULT], options={"tree": file})
            return measure_held_out(self.engine, self.held_out, runs, repeats=self.config.repeats, on_run=self.tick)


def _tree_report(tree: list[RankPath], traces: Sequence[Trace], cost: TreeCost, held_out: HeldOut) -> TreeReport:
    return TreeReport(
        paths=tree,
        accept_length=replay(traces, tree).accept_length,
        pass_ratio=cost.plain_ms / cost.pass_ms(tree),
        held_out=held_out,
    )


def write_trees(directory: Path, manifest: Manifest, report: TuneReport, *, force: bool = False) -> TuneReport:
    """Make the tuned trees that beat the default ones on held-out prompts the engine's own.

    Args:
        directory: The engine's.
        manifest: The one that it was loaded with.
        report: What tuning found.
        force: Whether to write the other tuned trees too.

    Returns:
        The report that says what was written.
    """
    methods = dict(report.methods)
    for name, found in report.methods.items():
        if found.tuned is not None and (found.is_better or force):
            how = f"on {report.fitted} prompts"
            manifest = write_tree(directory, manifest, name, found.tuned.paths, how)
            methods[name] = replace(found, written=True)
    return replace(report, methods=methods)
