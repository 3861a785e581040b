"""The plots of a profile."""

import math
from collections.abc import Mapping, Sequence

from spec_trt.bench_report import BASELINE
from spec_trt.profile.break_even import Standing
from spec_trt.profile.generations import PHASES, MethodLatency
from spec_trt.profile.report import Profile
from spec_trt.profile.svg import Label, Plot, nice_ticks, tag

__all__ = [
    "acceptance_chart",
    "budget_chart",
    "cost_chart",
    "latency_chart",
    "pays_chart",
    "phase_chart",
    "with_budgets",
]

HALF, FULL = 560, 1150


def pays_chart(profile: Profile, classes: Mapping[str, str]) -> str:
    """Where each method stands against the tokens per pass that its trees must reach: a stem up or down from there."""
    batches = sorted({row.batch for row in profile.break_even})
    curves = {
        batch: [(row.nodes, row.accept_length) for row in profile.break_even if row.batch == batch] for batch in batches
    }
    drafting = [one for one in profile.standings if one.method != BASELINE]
    widest = max([8.0, *(1.3 * one.nodes for one in drafting)])
    highest = 1.1 * max([2.0, *(max(one.accept_length, one.break_even) for one in drafting)])
    ticks = nice_ticks(highest)
    plot = Plot.framed(HALF, 369, x=(1, _next_power(widest)), y=(0, ticks[-1]), log_x=True)
    plot.y_axis(ticks, "tokens per pass")
    plot.x_axis(_powers(plot.x.high), "nodes of a pass, the root included")
    ends = []
    for batch in batches:
        points = [point for point in curves[batch] if point[0] <= plot.x.high and point[1] <= ticks[-1]]
        plot.line(points, "even" if batch == batches[0] else "even far", tip=f"break-even at batch {batch}")
        ends.append(Label(x=plot.x(points[-1][0]), y=plot.y(points[-1][1]), text=f"batch {batch}", class_="quiet"))
    for one in drafting:
        _stem(plot, one, classes[one.method])
    plot.labels(
        [
            Label(x=plot.x(one.nodes), y=plot.y(one.accept_length), text=one.method, class_=classes[one.method])
            for one in drafting
        ]
        + ends,
        taken=[(plot.x(one.nodes), plot.y(one.break_even)) for one in drafting],
    )
    return plot.svg("tokens per pass against what a pass costs")


def _stem(plot: Plot, one: Standing, class_: str) -> None:
    x, reached, needed = plot.x(one.nodes), plot.y(one.accept_length), plot.y(one.break_even)
    tip = f"{one.method}: {one.accept_length:.2f} tokens per pass, {one.break_even:.2f} to break even"
    verdict = "gain" if one.accept_length >= one.break_even else "loss"
    plot.add("line", x1=x, x2=x, y1=needed, y2=reached, class_=f"stem {verdict}")
    plot.add("line", x1=x - 6, x2=x + 6, y1=needed, y2=needed, class_=f"stem {verdict}")
    plot.add("circle", tag("title", tip), cx=x, cy=reached, r=5.0, class_=f"dot {class_}")


def cost_chart(profile: Profile) -> str:
    """Milliseconds of a pass by its nodes: a panel per batch, a line per past."""
    costs = profile.costs.verify
    batches = sorted({cost.batch for cost in costs})
    panels = []
    for batch in batches:
        mine = [cost for cost in costs if cost.batch == batch]
        ticks = nice_ticks(max(cost.ms for cost in mine), 4)
        most = max(2, *(cost.nodes for cost in mine))
        plot = Plot.framed(
            round(FULL / len(batches)), 270, x=(1, most), y=(0, ticks[-1]), log_x=True, margins=(28, 78, 48, 64)
        )
        plot.text(plot.x.start, 14, f"batch {batch}", class_="panel")
        plot.y_axis(ticks, "ms per pass")
        plot.x_axis(_powers(most), "nodes of each sequence")
        ends = []
        for shade, past in enumerate(sorted({cost.past for cost in mine})):
            points = [(float(cost.nodes), cost.ms) for cost in mine if cost.past == past]
            plot.line(points, f"past{shade % 3}", dots=True, tip=f"past {past}, nodes ")
            ends.append((plot.x(points[-1][0]) + 8, plot.y(points[-1][1]) + 4, f"past {past}", f"past{shade % 3}"))
        for x, y, text, class_ in _spread(ends):
            plot.text(x, y, text, class_=f"name {class_}")
        panels.append(plot.svg(f"cost of a pass at batch {batch}"))
    return tag("div", "".join(panels), class_="panels")


def _spread(labels: Sequence[tuple[float, float, str, str]]) -> list[tuple[float, float, str, str]]:
    """Labels at the ends of lines, from the top down, moved apart."""
    placed: list[tuple[float, float, str, str]] = []
    for x, y, text, class_ in sorted(labels, key=lambda label: label[1]):
        placed.append((x, max(y, placed[-1][1] + 14) if placed else y, text, class_))
    return placed


def budget_chart(profile: Profile, classes: Mapping[str, str]) -> str:
    """The predicted speed-up of each method by how many nodes it may draft; a ring where that is highest."""
    standings = with_budgets(profile)
    values = [budget.speedup for one in standings for budget in one.budgets] or [1.0]
    low, ticks = _span(values)
    most = max([8, *(one.budgets[-1].nodes for one in standings)])
    plot = Plot.framed(HALF, 340, x=(0, most), y=(low, ticks[-1]))
    plot.y_axis(ticks, "predicted speed-up", lambda tick: f"{tick:g}x")
    plot.x_axis([tick for tick in nice_ticks(most, 6) if tick <= most], "drafted nodes of a tree, at the most")
    plot.add("line", x1=plot.x.start, x2=plot.x.end, y1=plot.y(1), y2=plot.y(1), class_="even")
    for one in standings:
        plot.line([(budget.nodes, budget.speedup) for budget in one.budgets], classes[one.method], tip=one.method)
        plot.add(
            "circle",
            tag("title", f"{one.method}: {one.best.speedup:.2f} times plain with {one.best.nodes} nodes"),
            cx=plot.x(one.best.nodes),
            cy=plot.y(one.best.speedup),
            r=5.0,
            class_=f"ring {classes[one.method]}",
        )
    return plot.svg("predicted speed-up by the size of trees")


def with_budgets(profile: Profile) -> list[Standing]:
    """The methods whose trees can be cut."""
    return [one for one in profile.standings if one.method != BASELINE and one.budgets]


def _span(values: Sequence[float]) -> tuple[float, list[float]]:
    """Quarters from below the lowest value to above the highest, 1 among them; their first and all."""
    first, last = math.floor(min([0.75, *values]) * 4), math.ceil(max([1.25, *values]) * 4)
    step = 1 if last - first <= 8 else 2 if last - first <= 16 else 4
    ticks = [quarter / 4 for quarter in range(first - first % step, last + step, step)]
    return ticks[0], ticks


def acceptance_chart(profile: Profile, classes: Mapping[str, str]) -> str:
    """How often a pass accepts at least so many drafts."""
    drafting = [one for one in profile.methods if one.method != BASELINE and one.accepted_by_depth]
    deepest = max([3, *(len(one.accepted_by_depth) for one in drafting)])
    plot = Plot.framed(HALF, 340, x=(1, deepest), y=(0, 1))
    plot.y_axis([0, 0.25, 0.5, 0.75, 1], "share of passes", lambda tick: f"{tick:.0%}")
    plot.x_axis(range(1, deepest + 1), "drafted tokens accepted, at least")
    for one in drafting:
        points = [(float(depth), share) for depth, share in enumerate(one.accepted_by_depth, start=1)]
        plot.line(points, classes[one.method], dots=True, tip=f"{one.method}, depth ")
    return plot.svg("acceptance by depth")


def phase_chart(profile: Profile) -> str:
    """What a token takes, in bars of phases, the methods below each other."""
    rows = profile.methods
    per_token = [{phase: one.phase_ms[phase].mean / one.accept_length for phase in PHASES} for one in rows]
    ticks = nice_ticks(1.02 * max(sum(parts.values()) for parts in per_token))
    plot = Plot.framed(HALF, 44 * len(rows) + 62, x=(0, ticks[-1]), y=(0, 1), margins=(8, 62, 48, 108))
    for tick in ticks:
        plot.add("line", x1=plot.x(tick), x2=plot.x(tick), y1=plot.y.end, y2=plot.y.start, class_="grid")
    for row, (one, parts) in enumerate(zip(rows, per_token, strict=True)):
        top, at = 14 + 44 * row, 0.0
        plot.text(plot.x.start - 10, top + 16, one.method, class_="row", text_anchor="end")
        for phase, ms in _three(parts).items():
            wide = plot.x(at + ms) - plot.x(at)
            plot.add(
                "rect",
                tag("title", f"{one.method}, {phase}: {ms:.2f} ms per token"),
                x=plot.x(at),
                y=top,
                width=wide,
                height=24,
                class_=f"fill {phase}",
            )
            at += ms
        plot.text(plot.x(at) + 8, top + 16, f"{at:.1f} ms", class_="value")
    plot.x_axis(ticks, "milliseconds per token")
    return plot.svg("where the time of a token goes")


def _three(parts: Mapping[str, float]) -> dict[str, float]:
    """Draft, verify, and all the rest."""
    rest = sum(ms for phase, ms in parts.items() if phase not in {"draft", "verify"})
    return {"draft": parts["draft"], "verify": parts["verify"], "rest": rest}


def latency_chart(methods: Sequence[tuple[MethodLatency, Sequence[float]]], classes: Mapping[str, str]) -> str:
    """How long tokens take: a histogram per method, all on one axis, with marks at p50 and p99.

    Args:
        methods: Each with the milliseconds of its tokens.
        classes: By method, its CSS class.
    """
    longest = max((one.token_ms.p99 for one, _ in methods), default=1.0)
    ticks = nice_ticks(1.05 * longest)
    plot = Plot.framed(HALF, 44 * len(methods) + 62, x=(0, ticks[-1]), y=(0, 1), margins=(8, 62, 48, 108))
    for tick in ticks:
        plot.add("line", x1=plot.x(tick), x2=plot.x(tick), y1=plot.y.end, y2=plot.y.start, class_="grid")
    for row, (one, values) in enumerate(methods):
        base = 44 * row + 46
        plot.text(plot.x.start - 10, base - 12, one.method, class_="row", text_anchor="end")
        for left, right, share in _bins(values, ticks[-1]):
            plot.add(
                "rect",
                tag("title", f"{one.method}: {share:.0%} of tokens took {left:.1f} to {right:.1f} ms"),
                x=plot.x(left) + 0.5,
                y=base - 34 * share,
                width=max(plot.x(right) - plot.x(left) - 1, 0.5),
                height=34 * share,
                class_=f"fill {classes[one.method]}",
            )
        plot.add("line", x1=plot.x.start, x2=plot.x.end, y1=base, y2=base, class_="axis")
        for value, class_ in ((one.token_ms.p50, "p50"), (one.token_ms.p99, "p99")):
            plot.add("line", x1=plot.x(value), x2=plot.x(value), y1=base - 36, y2=base, class_=class_)
        plot.text(plot.x.end + 8, base - 12, f"{one.token_ms.p50:.1f} ms", class_="value")
    plot.x_axis(ticks, "milliseconds per token")
    return plot.svg("latency of tokens")


def _bins(values: Sequence[float], end: float, count: int = 60) -> list[tuple[float, float, float]]:
    """Left and right end of each bin that has values, and its height in the highest one's; the last has all beyond."""
    heights = [0] * count
    for value in values:
        heights[min(int(value / end * count), count - 1)] += 1
    highest = max([1, *heights])
    return [
        (end * place / count, end * (place + 1) / count, height / highest)
        for place, height in enumerate(heights)
        if height
    ]


def _powers(most: float) -> list[float]:
    """1, 2, 4, ..."""
    return [float(2**power) for power in range(12) if 2**power <= most]


def _next_power(value: float) -> float:
    return next(power for power in (8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 4096.0) if power >= value)
