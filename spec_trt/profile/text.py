"""A profile as tables, for a terminal."""

from collections.abc import Sequence

from spec_trt.bench_report import BASELINE
from spec_trt.profile.break_even import PREDICTION_MARGIN, Standing
from spec_trt.profile.generations import PHASES
from spec_trt.profile.kernels import KernelProfile
from spec_trt.profile.percentiles import Percentiles
from spec_trt.profile.report import Best, Profile
from spec_trt.table import format_table

__all__ = ["best_line", "break_even_rows", "counted", "margin_line", "profile_text"]


def profile_text(profile: Profile) -> str:
    """All of a profile's tables, and what follows from them in a line."""
    parts = [_head(profile), _curve(profile), _latency(profile), _phases(profile), _depths(profile)]
    parts += [_break_even(profile), _standings(profile), margin_line(profile.standings), best_line(profile.best)]
    return "\n\n".join([*parts, *map(_kernels, profile.kernels)])


def counted(count: int, thing: str) -> str:
    """A number of things."""
    return f"{count} {thing}{'s' if count != 1 else ''}"


def best_line(best: Best) -> str:
    """What would be quickest, in a sentence."""
    if best.method == BASELINE:
        return "best here: plain decoding, no method's drafts pay for themselves"
    setting = "as it is" if best.as_it_is else f"with trees of {best.nodes} drafted nodes"
    return f"best here: {best.method} {setting}, {best.accept_length:.2f} tokens per pass, {best.speedup:.2f} x plain"


def margin_line(standings: Sequence[Standing]) -> str:
    """How far predictions can be trusted, in a sentence."""
    off = [one.method for one in standings if abs(one.error or 0.0) > PREDICTION_MARGIN]
    if not off:
        return f"predicted and measured speed-ups agree within {PREDICTION_MARGIN:.0%}"
    return (
        f"predicted and measured speed-ups differ by more than {PREDICTION_MARGIN:.0%} for {', '.join(off)}: "
        "the machine had other work meanwhile, measure again when it has none"
    )


def _head(profile: Profile) -> str:
    engine, costs = profile.engine, profile.costs
    threads = f", {costs.threads} threads" if costs.threads else ""
    lines = [
        f"{engine.name}: {engine.model}, {engine.precision}, {engine.backend} {engine.library_version}",
        f"on {costs.machine}{threads}",
        f"load {profile.load_s:.2f} s, tokenizer {profile.tokenizer_load_s:.2f} s, "
        f"peak memory {profile.peak_memory_bytes / 1e6:.0f} MB, "
        f"prompts are read at {profile.prefill_tokens_per_s:.0f} tokens/s",
    ]
    lines += [
        f"loop's own time at batch {one.batch}: {one.loop_ms:.2f} of {one.step_ms:.2f} ms per step ({one.share:.1%})"
        for one in profile.overhead
    ]
    lines += [
        f"{name} drafts: {cost.fixed_ms:.2f} ms per pass, {cost.level_ms or 0:.2f} per further level"
        for name, cost in costs.draft.items()
        if cost.fixed_ms is not None
    ]
    return "\n".join(lines)


def _curve(profile: Profile) -> str:
    costs = profile.costs.verify
    nodes = sorted({cost.nodes for cost in costs})
    found = {(cost.batch, cost.past, cost.nodes): cost.ms for cost in costs}
    rows = []
    for batch, past in sorted({(cost.batch, cost.past) for cost in costs}):
        cells = [found.get((batch, past, count)) for count in nodes]
        rows.append([str(batch), str(past), *("" if ms is None else f"{ms:.1f}" for ms in cells)])
    return (
        format_table(["batch", "past", *(counted(count, "node") for count in nodes)], rows) + "\n(ms per verify pass)"
    )


def _latency(profile: Profile) -> str:
    header = [counted(profile.prompts, "prompt"), "tok/s", "accept length", "nodes"]
    header += ["first token ms p50", "p90", "p99", "token ms p50", "p90", "p99", "step ms p50", "p90", "p99"]
    rows = [
        [
            one.method,
            f"{one.tokens_per_s:.1f}",
            f"{one.accept_length:.2f}",
            f"{one.nodes_per_pass:.1f}",
            *_percentiles(one.first_token_ms, one.token_ms, one.step_ms),
        ]
        for one in profile.methods
    ]
    return format_table(header, rows)


def _percentiles(*several: Percentiles) -> list[str]:
    return [f"{value:.1f}" for one in several for value in (one.p50, one.p90, one.p99)]


def _phases(profile: Profile) -> str:
    rows = [[one.method, *(f"{one.phase_ms[phase].mean:.2f}" for phase in PHASES)] for one in profile.methods]
    return format_table(["ms per pass", *PHASES], rows)


def _depths(profile: Profile) -> str:
    drafting = [one for one in profile.methods if one.method != BASELINE]
    deepest = max((len(one.accepted_by_depth) for one in drafting), default=0)
    rows = [
        [one.method, *(f"{share:.2f}" for share in one.accepted_by_depth)]
        + [""] * (deepest - len(one.accepted_by_depth))
        for one in drafting
    ]
    tables = [format_table(["passes that accepted at least", *map(str, range(1, deepest + 1))], rows)]
    tables += [
        format_table(
            [f"{one.method}: right, by rank", *map(str, range(_ranks(one.accepted_by_rank)))],
            _ranked(one.accepted_by_rank),
        )
        for one in drafting
        if _ranks(one.accepted_by_rank) > 1
    ]
    return "\n\n".join(tables)


def _ranks(table: Sequence[Sequence[float]]) -> int:
    return max(map(len, table), default=0)


def _ranked(table: Sequence[Sequence[float]]) -> list[list[str]]:
    return [
        [f"depth {depth}", *(f"{share:.2f}" for share in shares)] + [""] * (_ranks(table) - len(shares))
        for depth, shares in enumerate(table, start=1)
    ]


def break_even_rows(profile: Profile) -> tuple[list[str], list[list[str]]]:
    """The tokens per pass that trees must reach: the methods that draft, and a row of cells for each size of tree."""
    drafting = [one.method for one in profile.methods if one.method != BASELINE]
    rows = [
        [
            str(row.batch),
            str(row.nodes),
            f"{row.verify_ms:.1f}",
            f"{row.accept_length:.2f}",
            *(f"{row.with_draft[name]:.2f}" for name in drafting),
        ]
        for row in profile.break_even
    ]
    return drafting, rows


def _break_even(profile: Profile) -> str:
    drafting, rows = break_even_rows(profile)
    title = f"tokens per pass that a tree must reach to pay, past {profile.past}; by method with its drafting"
    return f"{title}\n{format_table(['batch', 'nodes', 'ms', 'no draft', *drafting], rows)}"


def _standings(profile: Profile) -> str:
    batches = [batch for batch in sorted({cost.batch for cost in profile.costs.verify}) if batch != 1]
    header = ["where methods stand", "nodes", "draft ms", "verify ms", "by costs", "accept length", "break-even"]
    header += ["predicted", "measured", "off by", *(f"batch {batch}" for batch in batches), "best nodes", "then"]
    rows = [
        [
            one.method,
            f"{one.nodes:.1f}",
            f"{one.draft_ms:.2f}",
            f"{found.phase_ms['verify'].mean:.2f}",
            f"{one.verify_ms:.2f}",
            f"{one.accept_length:.2f}",
            f"{one.break_even:.2f}",
            f"{one.predicted_speedup:.2f}",
            "" if one.measured_speedup is None else f"{one.measured_speedup:.2f}",
            "" if one.error is None else f"{one.error:+.0%}",
            *(f"{one.by_batch[batch]:.2f}" for batch in batches),
            str(one.best.nodes),
            f"{one.best.speedup:.2f}",
        ]
        for found, one in zip(profile.methods, profile.standings, strict=True)
    ]
    return format_table(header, rows)


def _kernels(profile: KernelProfile) -> str:
    by_type = [[one.operator, str(one.calls), f"{one.ms:.2f}", f"{one.share:.0%}"] for one in profile.operators]
    by_node = [[one.name, one.output, f"{one.ms:.3f}", f"{one.share:.1%}"] for one in profile.graph_nodes]
    size = f"a pass of {counted(profile.nodes, 'node')}, past {profile.past}"
    return (
        f"operators of {size}: {profile.total_ms:.1f} ms under the profiler\n"
        f"{format_table(['operator', 'calls', 'ms', 'share'], by_type)}\n\n"
        f"{format_table(['node of the graph', 'gives', 'ms', 'share'], by_node)}"
    )
