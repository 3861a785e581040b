"""The tables of a profile's page."""

from collections.abc import Sequence
from html import escape

from spec_trt.profile.kernels import KernelProfile
from spec_trt.profile.percentiles import Percentiles
from spec_trt.profile.report import Profile
from spec_trt.profile.svg import tag
from spec_trt.profile.text import break_even_rows

__all__ = ["break_even_table", "html_table", "kernel_tables", "method_table", "rank_tables"]


def rank_tables(profile: Profile) -> str:
    """How often drafts were right, a table for each method that drafts siblings."""
    tables = []
    for one in profile.methods:
        ranks = max(map(len, one.accepted_by_rank), default=0)
        if ranks < 2:  # a chain: its depths are shown
            continue
        header = ["depth", *(f"{rank + 1}." for rank in range(ranks))]
        rows = [
            [str(depth), *map(_heat, shares), *["<td></td>"] * (ranks - len(shares))]
            for depth, shares in enumerate(one.accepted_by_rank[:5], start=1)
        ]
        tables.append(f"<div><h3>{escape(one.method)}</h3>{html_table(header, rows)}</div>")
    return (
        tag("div", "".join(tables), class_="tables")
        if tables
        else "<p>No method drafted siblings that were accepted.</p>"
    )


def _heat(share: float) -> str:
    return f'<td class="heat" style="--heat: {round(62 * share)}%">{share:.0%}</td>'


def method_table(profile: Profile) -> str:
    """Where every method stands, and its latencies."""
    batches = [batch for batch in sorted({cost.batch for cost in profile.costs.verify}) if batch != 1]
    header = ["", "tok/s", "measured", "predicted", "off by", *(f"batch {batch}" for batch in batches)]
    header += ["tokens per pass", "to break even", "nodes", "first token ms p50 · p90 · p99", "token ms", "step ms"]
    rows = []
    for found, one in zip(profile.methods, profile.standings, strict=True):
        speedups = [one.measured_speedup or 0.0, one.predicted_speedup]
        rows.append(
            [
                escape(one.method),
                f"{found.tokens_per_s:.1f}",
                *map(_gain, speedups),
                "" if one.error is None else f"{one.error:+.0%}",
                *(_gain(one.by_batch[batch]) for batch in batches),
                f"{one.accept_length:.2f}",
                f"{one.break_even:.2f}",
                f"{one.nodes:.1f}",
                *map(_percentiles, (found.first_token_ms, found.token_ms, found.step_ms)),
            ]
        )
    return html_table(header, rows)


def _gain(speedup: float) -> str:
    class_ = "up" if speedup >= 1.03 else "down" if speedup < 0.97 else "even"
    return f'<td class="{class_}">{speedup:.2f}x</td>'


def _percentiles(one: Percentiles) -> str:
    digits = 0 if one.p99 >= 100 else 1
    return " · ".join(f"{value:.{digits}f}" for value in (one.p50, one.p90, one.p99))


def break_even_table(profile: Profile) -> str:
    """The tokens per pass that trees must reach."""
    drafting, rows = break_even_rows(profile)
    return html_table(["batch", "nodes", "verify ms", "no drafting", *drafting], rows)


def kernel_tables(kernels: KernelProfile) -> str:
    """Operators by type, and nodes of the graph."""
    by_type = [[escape(one.operator), str(one.calls), f"{one.ms:.2f}", f"{one.share:.0%}"] for one in kernels.operators]
    by_node = [[escape(one.name), one.output, f"{one.ms:.3f}", f"{one.share:.1%}"] for one in kernels.graph_nodes]
    tables = (
        f"<div>{html_table(['operator', 'calls', 'ms', 'share'], by_type)}</div>"
        f"<div>{html_table(['node of the graph', 'gives', 'ms', 'share'], by_node)}</div>"
    )
    return tag("div", tables, class_="tables")


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; a cell that is an element already stays as it is."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(content: str) -> str:
    return content if content.startswith("<td") else f"<td>{content}</td>"
