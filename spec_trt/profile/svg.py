"""Plots as SVG text: scales, axes, lines and labels that keep out of each other's way."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

__all__ = ["Label", "Plot", "Scale", "nice_ticks", "tag"]

Point = tuple[float, float]
_CHARACTER = 6.6  # pixels of a character of 12 pixels' height, about


def tag(name: str, content: str = "", **attributes: object) -> str:
    """An element; `class_` is written as class, `stroke_width` as stroke-width, None is left out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}>{content}</{name}>" if content else f"<{name}{written}/>"


def _text(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """From values to pixels.

    Attributes:
        low: The value at `start`.
        high: The value at `end`.
        start: In pixels.
        end: In pixels.
        log: Whether equal ratios are equal distances.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Where a value is; values beyond the ends are at the ends."""
        low, high, at = (math.log(number) if self.log else number for number in (self.low, self.high, value))
        share = (at - low) / (high - low) if high > low else 0.0
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)


def nice_ticks(high: float, count: int = 5) -> list[float]:
    """Round numbers from 0 to the first one that is not below `high`, about so many."""
    if high <= 0:
        return [0.0, 1.0]
    rough = high / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
    return [round(step * index, 10) for index in range(math.ceil(high / step - 1e-9) + 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A text beside a point of a plot.

    Attributes:
        x: The point's, in pixels.
        y: The point's, in pixels.
        text: What it says.
        class_: Its CSS class.
    """

    x: float
    y: float
    text: str
    class_: str


@dataclass(slots=True, kw_only=True)
class Plot:
    """A plot under way.

    Attributes:
        width: In pixels.
        height: In pixels.
        x: From values to pixels.
        y: Likewise.
        parts: The elements so far.
    """

    width: int
    height: int
    x: Scale
    y: Scale
    parts: list[str] = field(default_factory=list)

    @classmethod
    def framed(
        cls,
        width: int,
        height: int,
        *,
        x: tuple[float, float],
        y: tuple[float, float],
        log_x: bool = False,
        margins: tuple[int, int, int, int] = (16, 20, 48, 62),
    ) -> "Plot":
        """A plot whose axes leave margins: top, right, bottom, left."""
        top, right, bottom, left = margins
        return cls(
            width=width,
            height=height,
            x=Scale(low=x[0], high=x[1], start=left, end=width - right, log=log_x),
            y=Scale(low=y[0], high=y[1], start=height - bottom, end=top),
        )

    def add(self, name: str, content: str = "", **attributes: object) -> None:
        """Add an element; see `tag`."""
        self.parts.append(tag(name, content, **attributes))

    def text(self, x: float, y: float, words: str, **attributes: object) -> None:
        """Add a text."""
        self.add("text", escape(words), x=float(x), y=float(y), **attributes)

    def x_axis(
        self, ticks: Sequence[float], label: str, form: Callable[[float], str] = lambda tick: f"{tick:g}"
    ) -> None:
        """Add the horizontal axis."""
        bottom = self.y.start
        self.add("line", x1=self.x.start, x2=self.x.end, y1=bottom, y2=bottom, class_="axis")
        for tick in ticks:
            self.add("line", x1=self.x(tick), x2=self.x(tick), y1=bottom, y2=bottom + 4, class_="axis")
            self.text(self.x(tick), bottom + 18, form(tick), class_="tick", text_anchor="middle")
        self.text((self.x.start + self.x.end) / 2, bottom + 38, label, class_="label", text_anchor="middle")

    def y_axis(
        self, ticks: Sequence[float], label: str, form: Callable[[float], str] = lambda tick: f"{tick:g}"
    ) -> None:
        """Add the vertical axis, with lines across."""
        for tick in ticks:
            at = self.y(tick)
            self.add("line", x1=self.x.start, x2=self.x.end, y1=at, y2=at, class_="grid")
            self.text(self.x.start - 8, at + 4, form(tick), class_="tick", text_anchor="end")
        middle = (self.y.start + self.y.end) / 2
        self.add(
            "text",
            escape(label),
            x=12.0,
            y=middle,
            class_="label",
            text_anchor="middle",
            transform=f"rotate(-90 12 {middle:.1f})",
        )

    def line(self, points: Sequence[Point], class_: str, *, dots: bool = False, tip: str = "") -> None:
        """Add a line through points given in values, with a dot at each where wanted."""
        pixels = [(self.x(x), self.y(y)) for x, y in points]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in pixels)
        self.add("path", _tip(tip), d=path, class_=f"line {class_}")
        for (x, y), (at, value) in zip(pixels, points, strict=True):
            if dots:
                self.add("circle", _tip(f"{tip}{at:g}: {value:.2f}"), cx=x, cy=y, r=3.0, class_=f"dot {class_}")

    def labels(self, labels: Sequence[Label], taken: Sequence[Point] = ()) -> None:
        """Add labels, each at the first place beside its point where it covers neither a point nor another label."""
        boxes = [(x - 6, y - 6, x + 6, y + 6) for x, y in [*((one.x, one.y) for one in labels), *taken]]
        for label in sorted(labels, key=lambda one: one.y):
            wide = _CHARACTER * len(label.text)
            places = [
                (label.x + dx if dx > 0 else label.x + dx - wide if dx < 0 else label.x - wide / 2, label.y + dy)
                for dy in (4, -9, 17, -22, 30, -35, 43)
                for dx in ((9, -9) if dy == 4 else (0, 9, -9))
            ]
            free = [place for place in places if self._is_free(place, wide, boxes)]
            x, y = (free or places)[0]
            boxes.append((x, y - 10, x + wide, y + 3))
            self.text(x, y, label.text, class_=f"name {label.class_}")

    def _is_free(self, place: Point, wide: float, boxes: Sequence[tuple[float, float, float, float]]) -> bool:
        left, top, right, bottom = place[0], place[1] - 10, place[0] + wide, place[1] + 3
        inside = left >= self.x.start + 2 and right <= self.width - 2 and top >= 2 and bottom <= self.y.start - 2
        return inside and all(right <= x1 or left >= x2 or bottom <= y1 or top >= y2 for x1, y1, x2, y2 in boxes)

    def svg(self, title: str) -> str:
        """The whole plot."""
        return tag(
            "svg",
            tag("title", escape(title)) + "".join(self.parts),
            viewBox=f"0 0 {self.width} {self.height}",
            role="img",
            xmlns="http://www.w3.org/2000/svg",
        )


def _tip(words: str) -> str:
    """What a browser shows beside the pointer."""
    return tag("title", escape(words)) if words else ""
