"""One answer's first steps as pictures: every method side by side, and one in lanes."""

from collections.abc import Sequence

from spec_trt.profile.recording import Recording, Span
from spec_trt.profile.svg import Plot, nice_ticks, tag

__all__ = ["lanes_chart", "race_chart", "window_s"]

_WIDTH = 1150
_PASSES = 14  # of the first recording: what the picture is wide enough for
_LANES = ("draft", "verify", "rest")


def window_s(recordings: Sequence[Recording]) -> float:
    """Seconds that the pictures show."""
    spans = recordings[0].spans[:_PASSES]
    return spans[-1][-1].ended - spans[0][0].started


def race_chart(recordings: Sequence[Recording]) -> str:
    """The same stretch of time for every method: its passes, and how many tokens each gave.

    Args:
        recordings: One of each method, of the same prompt, plain decoding's first.
    """
    ticks = nice_ticks(1e3 * window_s(recordings), 8)
    end = ticks[-1]
    plot = Plot.framed(_WIDTH, 40 * len(recordings) + 60, x=(0, end), y=(0, 1), margins=(6, 96, 48, 108))
    for tick in ticks:
        plot.add("line", x1=plot.x(tick), x2=plot.x(tick), y1=plot.y.end, y2=plot.y.start, class_="grid")
    for row, recording in enumerate(recordings):
        top = 12 + 40 * row
        plot.text(plot.x.start - 10, top + 17, recording.method, class_="row", text_anchor="end")
        tokens = _race_row(plot, recording, top, end)
        plot.text(plot.x.end + 12, top + 17, f"{tokens} tokens", class_="value")
    plot.x_axis(ticks, "milliseconds since the first pass began")
    return plot.svg("the first steps of every method on the same prompt")


def _race_row(plot: Plot, recording: Recording, top: float, end: float) -> int:
    """Draw a method's passes; how many tokens they gave in time."""
    begin, tokens = recording.spans[0][0].started, 0
    for spans, one in zip(recording.spans, recording.passes, strict=True):
        if 1e3 * (spans[0].started - begin) >= end:
            break
        for span in spans:
            _slice(plot, span, begin, end, top, 24)
        done = 1e3 * (_emitted(spans) - begin)
        if done <= end:
            tokens += len(one.accepted) + 1
            if one.accepted:
                plot.text(plot.x(done) - 3, top + 16, f"{len(one.accepted) + 1}", class_="count", text_anchor="end")
    return tokens


def _emitted(spans: Sequence[Span]) -> float:
    return max((span.ended for span in spans if span.phase == "emit"), default=spans[-1].ended)


def _slice(plot: Plot, span: Span, begin: float, end: float, top: float, height: float) -> None:
    start, stop = (1e3 * (at - begin) for at in (span.started, span.ended))
    if start >= end:
        return
    plot.add(
        "rect",
        tag("title", f"{span.phase}: {stop - start:.2f} ms"),
        x=plot.x(start),
        y=top,
        width=max(plot.x(min(stop, end)) - plot.x(start) - 0.4, 0.6),
        height=height,
        class_=f"fill {_lane(span)}",
    )


def _lane(span: Span) -> str:
    return span.phase if span.phase in _LANES else "rest"


def lanes_chart(recording: Recording, seconds: float) -> str:
    """A generation's passes in lanes: draft, verify, and the rest; above them, how many tokens each pass gave."""
    ticks = nice_ticks(1e3 * seconds, 8)
    end, begin = ticks[-1], recording.spans[0][0].started
    plot = Plot.framed(_WIDTH, 196, x=(0, end), y=(0, 1), margins=(6, 96, 48, 108))
    for tick in ticks:
        plot.add("line", x1=plot.x(tick), x2=plot.x(tick), y1=plot.y.end + 20, y2=plot.y.start, class_="grid")
    for row, lane in enumerate(_LANES):
        plot.text(plot.x.start - 10, 54 + 36 * row, lane, class_="row", text_anchor="end")
    plot.text(plot.x.start - 10, 20, "tokens", class_="row", text_anchor="end")
    for spans, one in zip(recording.spans, recording.passes, strict=True):
        done = 1e3 * (_emitted(spans) - begin)
        if done > end:
            break
        for span in spans:
            _slice(plot, span, begin, end, 38 + 36 * _LANES.index(_lane(span)), 24)
        plot.add("line", x1=plot.x(done), x2=plot.x(done), y1=26, y2=plot.y.start, class_="pass")
        plot.text(plot.x(done), 20, f"+{len(one.accepted) + 1}", class_="tick", text_anchor="middle")
    plot.x_axis(ticks, "milliseconds since the first pass began")
    return plot.svg(f"the first steps of {recording.method}")
