"""Measured accumulation error against its proven bound over N, log-log, one small inline SVG for each dtype.

Solid marks: the largest error at that N over all nets and examples, a circle for cpu, a diamond for any other
device, side by side. Faint marks: every row. Line: the largest bound proven for a row at that N. A row above its own
bound is a cross with a label, wherever it lies. Zeros, which have no logarithm, and what is ten decades below the
largest number stand in a strip of their own under the axis.
Colours come from the page's style sheet; text is escaped by markupsafe.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from gradproof.render.consistency import exceeds
from gradproof.render.errors import Group, Row, groups
from gradproof.render.fmt import clean, ratio, sci

WIDTH, HEIGHT = 360, 290
DECADES = 10
MOST_LABELS = 9
LEFT, RIGHT, TOP, BOTTOM, STRIP = 62, 14, 14, 58, 24


@dataclass(frozen=True)
class Panel:
    """One dtype: its SVG and the groups behind it."""

    dtype: str
    svg: Markup
    groups: tuple[Group, ...]
    note: str


@dataclass(frozen=True)
class Axes:
    """Data to pixels. `low` and `high` are powers of ten; `strip` is what the place of lower values is called."""

    sizes: tuple[int, ...]
    low: int
    high: int
    strip: str

    def x(self, n: float) -> float:
        """Column of N, on a log2 scale with half a step of margin."""
        first, last = math.log2(self.sizes[0]), math.log2(self.sizes[-1])
        span = last - first or 1.0
        where = (math.log2(n) - first) / span if last > first else 0.5
        return LEFT + 14 + where * (WIDTH - LEFT - RIGHT - 28)

    @property
    def floor(self) -> float:
        """Row of the lowest power of ten."""
        return HEIGHT - BOTTOM - (STRIP if self.strip else 0)

    def under(self, value: float) -> bool:
        """Whether a value is below the lowest power of ten that is drawn."""
        return value < 10.0**self.low

    def y(self, value: float) -> float:
        """Row of an error: zero and what is too low go to the strip, what is not finite to the upper edge."""
        if self.under(value):
            return HEIGHT - BOTTOM - STRIP / 2
        if not math.isfinite(value):
            return float(TOP)
        where = (math.log10(value) - self.low) / (self.high - self.low)
        return self.floor - where * (self.floor - TOP)


def panels(rows: Sequence[Row]) -> list[Panel]:
    """One panel for each dtype of the accumulation rows, in order of appearance."""
    made = []
    for dtype in dict.fromkeys(r["dtype"] for r in rows):
        mine = [r for r in rows if r["dtype"] == dtype]
        found = groups(mine)
        made.append(Panel(dtype, _svg(dtype, mine, found), tuple(found), describe(dtype, found)))
    return made


def describe(dtype: str, found: Sequence[Group]) -> str:
    """The text alternative: ends of the range, worst ratio, and what is above its bound."""
    ends = [f"N = {g.n} on {clean(g.device)}: measured {sci(g.largest['measured'])}" for g in (found[0], found[-1])]
    ratios = [g.worst_ratio for g in found if g.worst_ratio is not None]
    worst = f"largest measured over proven: {ratio(max(ratios))}" if ratios else "no proven bound"
    above = sum(g.above for g in found)
    total = sum(g.rows for g in found)
    return f"{clean(dtype)}. {ends[0]}; {ends[1]}; {worst}; {above} of {total} rows above their bound."


def axes(rows: Sequence[Row]) -> Axes:
    """Whole decades around the positive finite numbers, at most DECADES of them below the largest."""
    drawn = [v for r in rows for v in (r["measured"], r.get("bound"), r.get("tolerance")) if v is not None]
    positive = [float(v) for v in drawn if v > 0 and math.isfinite(v)]
    high = math.ceil(math.log10(max(positive))) if positive else 0
    low = math.floor(math.log10(min(positive))) if positive else -1
    low = max(min(low, high - 1), high - DECADES)
    lower = [v for v in drawn if v < 10.0**low]
    strip = ("lower" if any(lower) else "0") if lower else ""
    return Axes(tuple(sorted({r["n"] for r in rows})), low, high, strip)


def _svg(dtype: str, rows: Sequence[Row], found: Sequence[Group]) -> Markup:
    ax = axes(rows)
    parts = [*grid(ax), *_tolerances(ax, rows), *_bound(ax, found), *_faint(ax, rows), *_solid(ax, found)]
    parts += _crosses(ax, [r for r in rows if exceeds(r)])
    head = Markup('<svg class="plot" role="img" viewBox="0 0 {} {}" aria-label="{}">').format(
        WIDTH, HEIGHT, f"Measured error and proven bound over N. {describe(dtype, found)}"
    )
    return head + Markup("").join(parts) + Markup("</svg>")


def grid(ax: Axes, measure: str = "max |error| per element") -> list[Markup]:
    """Decades, sizes and both axes; `measure` is what stands upright."""
    parts = []
    step = max(1, math.ceil((ax.high - ax.low) / 6))
    for power in range(ax.low, ax.high + 1):
        y = ax.y(10.0**power)
        parts.append(line("grid", LEFT, y, WIDTH - RIGHT, y))
        if (power - ax.low) % step == 0:
            label = Markup('<text class="tick" x="{}" y="{:.1f}" text-anchor="end">10<tspan dy="-4">{}</tspan></text>')
            parts.append(label.format(LEFT - 7, y + 4, str(power).replace("-", "−")))
    apart = math.ceil(len(ax.sizes) / MOST_LABELS)
    for place, n in enumerate(ax.sizes):
        parts.append(line("grid", ax.x(n), TOP, ax.x(n), HEIGHT - BOTTOM))
        if place % apart == 0:
            parts.append(text("tick", ax.x(n), HEIGHT - BOTTOM + 16, str(n), "middle"))
    if ax.strip:
        parts.append(text("tick", LEFT - 7, ax.y(0) + 4, ax.strip, "end"))
    parts.append(line("axis", LEFT, TOP, LEFT, ax.floor))
    parts.append(line("axis", LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM))
    parts.append(text("label", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 22, "N (micro-batches in a step)", "middle"))
    turned = Markup('<text class="label" transform="translate(14 {:.1f}) rotate(-90)" text-anchor="middle">{}</text>')
    parts.append(turned.format((TOP + HEIGHT - BOTTOM) / 2, measure))
    return parts


def _tolerances(ax: Axes, rows: Sequence[Row]) -> list[Markup]:
    values = {float(r["tolerance"]) for r in rows if r.get("tolerance")}
    return [line("tolerance", LEFT, ax.y(v), WIDTH - RIGHT, ax.y(v)) for v in sorted(values)]


def _bound(ax: Axes, found: Sequence[Group]) -> list[Markup]:
    """A tick at each N, the largest bound there, joined by a line where it is not zero."""
    tops: dict[int, Group] = {}
    for g in found:
        if g.largest.get("bound") is not None and (g.n not in tops or g.largest["bound"] > tops[g.n].largest["bound"]):
            tops[g.n] = g
    points = [
        (ax.x(n), ax.y(float(tops[n].largest["bound"])), ax.under(tops[n].largest["bound"])) for n in sorted(tops)
    ]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, low in points if not low)
    joined = Markup('<polyline class="bound" points="{}"/>').format(path) if path else Markup("")
    return [joined, *(line("bound", x - 6, y, x + 6, y) for x, y, _ in points)]


def _faint(ax: Axes, rows: Sequence[Row]) -> list[Markup]:
    dot = Markup('<circle class="row" cx="{:.1f}" cy="{:.1f}" r="2.2"/>')
    return [dot.format(ax.x(r["n"]), ax.y(float(r["measured"]))) for r in rows]


def _solid(ax: Axes, found: Sequence[Group]) -> list[Markup]:
    devices = list(dict.fromkeys(g.device for g in found))
    parts = []
    for g in found:
        aside = 10 * (devices.index(g.device) - (len(devices) - 1) / 2)
        title = f"{clean(g.device)}, N = {g.n}: {sci(g.largest['measured'])}, bound {sci(g.largest.get('bound'))}"
        parts.append(mark(g.device, ax.x(g.n) + aside, ax.y(float(g.largest["measured"])), title))
    return parts


def mark(device: str, x: float, y: float, title: str = "") -> Markup:
    """A circle for cpu, a diamond for another device."""
    hint = Markup("<title>{}</title>").format(title) if title else Markup("")
    if device == "cpu":
        return Markup('<circle class="measured" cx="{:.1f}" cy="{:.1f}" r="4.2">{}</circle>').format(x, y, hint)
    shape = Markup('<path class="measured other" d="M{:.1f} {:.1f}l5 5l-5 5l-5 -5z">{}</path>')
    return shape.format(x, y - 5, hint)


def _crosses(ax: Axes, rows: Sequence[Row]) -> list[Markup]:
    """A cross for each row, and one label for each N, at the highest."""
    shape = Markup('<path class="above" d="M{:.1f} {:.1f}l10 10m0 -10l-10 10"/>')
    parts = [shape.format(ax.x(r["n"]) - 5, ax.y(float(r["measured"])) - 5) for r in rows]
    for n in dict.fromkeys(r["n"] for r in rows):
        tops = [ax.y(float(r["measured"])) for r in rows if r["n"] == n]
        x, y = ax.x(n), min(tops)
        where = "end" if x > WIDTH * 0.75 else "start" if x < LEFT + 50 else "middle"
        parts.append(text("above", x, y - 9 if y > TOP + 16 else y + 18, f"{len(tops)} above", where))
    return parts


def line(kind: str, x1: float, y1: float, x2: float, y2: float) -> Markup:
    """A straight line of a kind that the style sheet knows."""
    made = Markup('<line class="{}" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>')
    return made.format(kind, x1, y1, x2, y2)


def text(kind: str, x: float, y: float, words: str, where: str) -> Markup:
    """Words at a place; `where` is start, middle or end."""
    return Markup('<text class="{}" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(kind, x, y, where, words)
