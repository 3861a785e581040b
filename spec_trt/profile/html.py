"""A profile as one page: plots and tables, with nothing to load from elsewhere."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template

from spec_trt.bench_report import BASELINE
from spec_trt.profile.charts import (
    acceptance_chart,
    budget_chart,
    cost_chart,
    latency_chart,
    pays_chart,
    phase_chart,
    with_budgets,
)
from spec_trt.profile.html_tables import break_even_table, kernel_tables, method_table, rank_tables
from spec_trt.profile.kernels import KernelProfile
from spec_trt.profile.recording import Recording
from spec_trt.profile.report import Profile
from spec_trt.profile.svg import tag
from spec_trt.profile.text import counted, margin_line
from spec_trt.profile.timeline import lanes_chart, race_chart, window_s

__all__ = ["profile_html"]

_PAGE = Path(__file__).parent / "page.html"
_COLORS = 8


def profile_html(profile: Profile, recordings: Sequence[Recording]) -> str:
    """The page.

    Args:
        profile: The figures.
        recordings: The generations that they were made of.
    """
    engine, costs = profile.engine, profile.costs
    threads = f" · {costs.threads} threads" if costs.threads else ""
    return Template(_PAGE.read_text(encoding="utf-8")).substitute(
        title=escape(f"{engine.name}: latency profile"),
        engine=escape(f"{engine.model} · {engine.precision} · {engine.backend} {engine.library_version}"),
        machine=escape(f"{costs.machine}{threads} · {profile.created[:16].replace('T', ' ')} UTC"),
        flat=" flat" if profile.best.method == BASELINE else "",
        verdict=_verdict(profile),
        tiles="".join(_tiles(profile)),
        cards="\n".join(_cards(profile, recordings)),
        footer=escape(
            f"{engine.name}: {counted(profile.prompts, 'prompt')}, {profile.max_new_tokens} tokens each, one sequence "
            "at a time, methods in turn. Predictions are for prompts like these on this machine. spec-trt profile"
        ),
    )


def _verdict(profile: Profile) -> str:
    best = profile.best
    if best.method == BASELINE:
        return "<b>Plain decoding</b> is quickest here: no method's drafts pay for themselves on these prompts."
    size = "" if best.as_it_is else f" with trees of {best.nodes} drafted nodes"
    return (
        f"{escape(best.method)}{size} is predicted to decode <b>{best.speedup:.2f} times</b> as fast as plain decoding."
    )


def _tiles(profile: Profile) -> Iterable[str]:
    plain = profile.methods[0]
    quickest = max(profile.methods, key=lambda one: one.tokens_per_s)
    yield _tile("plain decoding", f"{plain.tokens_per_s:.1f}", "tokens/s")
    if quickest is not plain:
        yield _tile(f"quickest measured, {quickest.method}", f"{quickest.tokens_per_s:.1f}", "tokens/s")
    yield _tile("first token, plain, p50", f"{plain.first_token_ms.p50:.0f}", "ms")
    yield _tile("prompts are read at", f"{profile.prefill_tokens_per_s:.0f}", "tokens/s")
    for one in profile.overhead:
        yield _tile(f"loop's own time, batch {one.batch}", f"{100 * one.share:.1f}", "% of a step")
    yield _tile("peak memory", f"{profile.peak_memory_bytes / 1e6:.0f}", "MB")
    yield _tile("load", f"{profile.load_s:.2f}", "s")


def _tile(name: str, value: str, unit: str) -> str:
    return f'<div class="tile"><dt>{escape(name)}</dt><dd>{value}<small>{escape(unit)}</small></dd></div>'


def _cards(profile: Profile, recordings: Sequence[Recording]) -> Iterable[str]:
    classes = {one.method: f"m{place % _COLORS}" for place, one in enumerate(profile.methods)}
    legend = _legend({name: class_ for name, class_ in classes.items() if name != BASELINE})
    phases = _legend({"draft": "draft", "verify": "verify", "accept, commit, emit and the loop": "rest"})
    yield _card(
        "Does it pay?",
        "The line is what a pass costs in plain steps: the tokens it must give. Each stem goes from what a method has "
        f"to reach, its drafting included, to what it reached. Past {profile.past}.",
        pays_chart(profile, classes),
    )
    yield _card(
        "How large should trees be?",
        "Predicted from what was accepted and what passes cost, were each tree cut to the nodes accepted most. Rings "
        "mark the best size, 1x is plain decoding.",
        _legend({one.method: classes[one.method] for one in with_budgets(profile)}) + budget_chart(profile, classes),
    )
    yield _card("Where a token's time goes", "Means over all passes.", phases + phase_chart(profile))
    yield _card(
        "How long a token takes",
        "Tokens that one pass gives share its time. The solid mark is p50, the dashed one p99.",
        latency_chart([(one, _token_ms(recordings, one.method)) for one in profile.methods], classes),
    )
    yield from _timelines(profile, recordings, phases)
    yield _card(
        "How deep drafts are accepted",
        "The share of passes that accepted at least so many drafted tokens.",
        legend + acceptance_chart(profile, classes),
    )
    yield _card(
        "Right, by rank",
        "How often a drafted token was the model's own, where its parent was: by depth, and by place among siblings.",
        rank_tables(profile),
    )
    yield _card("What a pass costs", "Medians of verify passes, by committed rows.", cost_chart(profile), wide=True)
    yield _card("Methods", f"{margin_line(profile.standings).capitalize()}.", method_table(profile), wide=True)
    yield _card(
        "Break-even",
        f"Tokens per pass that a tree must reach to pay, past {profile.past}; with each method's drafting.",
        break_even_table(profile),
        wide=True,
    )
    for kernels in profile.kernels:
        yield _kernel_card(kernels)


def _card(title: str, words: str, content: str, *, wide: bool = False) -> str:
    about = f"<p>{escape(words)}</p>" if words else ""
    return f'<section class="card{" wide" if wide else ""}"><h2>{escape(title)}</h2>{about}{content}</section>'


def _legend(classes: Mapping[str, str]) -> str:
    items = "".join(tag("li", escape(name), class_=class_) for name, class_ in classes.items())
    return tag("ul", items, class_="legend")


def _token_ms(recordings: Sequence[Recording], method: str) -> list[float]:
    return [
        1e3 * elapsed / count
        for recording in recordings
        if recording.method == method
        for elapsed, count in recording.stats.gaps
        for _ in range(count)
    ]


def _timelines(profile: Profile, recordings: Sequence[Recording], phases: str) -> Iterable[str]:
    """The first prompt's answers."""
    first = [next(one for one in recordings if one.method == found.method) for found in profile.methods]
    yield _card(
        "The first steps of one answer",
        "Every method on the same prompt, for the same stretch of time. A number is the tokens of a pass that gave "
        "more than one.",
        phases + race_chart(first),
        wide=True,
    )
    drafting = [one for one in profile.methods if one.method != BASELINE] or list(profile.methods)
    chosen = max(drafting, key=lambda one: one.tokens_per_s).method
    yield _card(
        f"The same, {chosen} in lanes",
        "Dotted lines are where a pass hands out its tokens.",
        lanes_chart(next(one for one in first if one.method == chosen), window_s(first)),
        wide=True,
    )


def _kernel_card(kernels: KernelProfile) -> str:
    words = (
        f"Past {kernels.past}, {kernels.total_ms:.1f} ms under ONNX Runtime's profiler, which adds a little to each."
    )
    return _card(f"Operators of a pass of {counted(kernels.nodes, 'node')}", words, kernel_tables(kernels), wide=True)
