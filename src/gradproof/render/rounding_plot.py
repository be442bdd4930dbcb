"""Proven bound and attained error of accumulation over N, log-log, one small inline SVG for each buffer.

Line: the bound, proved for every input. Marks: the error of a constructed input, evaluated exactly; solid at N = 2^k,
faint elsewhere. Dashed: tolerances that the buffer is asked about. N = 1 adds nothing and has no logarithm where the
bound is zero: it is left out. Colours come from the page's style sheet.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from markupsafe import Markup

from gradproof.render.fmt import clean, ratio, sci
from gradproof.render.plot import DECADES, HEIGHT, LEFT, RIGHT, WIDTH, Axes, grid, line, mark, text

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Both:
    """Both sides at one N. Errors are absolute, in units of the gradient."""

    n: int
    bound: float
    attained: float
    ratio: float | None

    @property
    def power(self) -> bool:
        """Whether N is a power of two."""
        return self.n & (self.n - 1) == 0


@dataclass(frozen=True)
class Panel:
    """One buffer: its SVG, the text alternative, and the points at N = 2^k."""

    buffer: str
    svg: Markup
    note: str
    powers: tuple[Both, ...]


def panels(document: Document) -> list[Panel]:
    """One panel for each series of a rounding study that has a point above zero."""
    made = []
    for row in document["series"]:
        points = both(row)
        drawn = [p for p in points if p.bound > 0]
        if drawn:
            asked = tolerances(document, row["buffer"])
            note = describe(row["buffer"], drawn)
            made.append(Panel(row["buffer"], _svg(drawn, asked, note), note, tuple(p for p in points if p.power)))
    return made


def both(series: Mapping[str, Any]) -> list[Both]:
    """The points of a series as floats."""
    rows = ((p["n"], float(Fraction(p["bound"])), float(Fraction(p["attained"])), p["ratio"]) for p in series["points"])
    return [Both(*row) for row in rows]


def tolerances(document: Document, buffer: str) -> dict[str, float]:
    """The tolerances that gradients of the buffer's own format are asked about there, by their text."""
    rows = [r for r in document["thresholds"] if r["buffer"] == buffer == r["gradients"]]
    return {r["tolerance"]: float(Fraction(r["tolerance"])) for r in rows}


def describe(buffer: str, points: Sequence[Both]) -> str:
    """The text alternative: ends of the range, and how far the sides are apart."""
    ends = [f"N = {p.n}: bound {sci(p.bound)}, attained {sci(p.attained)}" for p in (points[0], points[-1])]
    words = [f"{clean(buffer)} buffer, left to right. {'; '.join(dict.fromkeys(ends))}"]
    powers = [p.ratio for p in points if p.power and p.ratio is not None]
    others = [p.ratio for p in points if not p.power and p.ratio is not None]
    words += [f"largest bound over attained at N = 2^k: {ratio(max(powers))}"] if powers else []
    words += [f"at other N up to {max(p.n for p in points if not p.power)}: {ratio(max(others))}"] if others else []
    return "; ".join(words) + "."


def axes(points: Sequence[Both], asked: Mapping[str, float]) -> Axes:
    """Whole decades around the positive numbers; the sizes are powers of two."""
    positive = [v for p in points for v in (p.bound, p.attained) if v > 0] + [v for v in asked.values() if v > 0]
    high = math.ceil(math.log10(max(positive)))
    low = max(min(math.floor(math.log10(min(positive))), high - 1), high - DECADES)
    last = max(2 * points[0].n, *(p.n for p in points))
    sizes = [2**k for k in range((last - 1).bit_length() + 1) if 2**k >= points[0].n]
    return Axes(tuple(sizes), low, high, "0" if any(p.attained == 0 for p in points) else "")


def _svg(points: Sequence[Both], asked: Mapping[str, float], note: str) -> Markup:
    ax = axes(points, asked)
    path = " ".join(f"{ax.x(p.n):.1f},{ax.y(p.bound):.1f}" for p in points)
    parts = [*grid(ax, "|error|, in units of the gradient")]
    for words, value in asked.items():
        parts += [line("tolerance", LEFT, ax.y(value), WIDTH - RIGHT, ax.y(value))]
        parts += [text("tick", WIDTH - RIGHT - 4, ax.y(value) - 4, words, "end")]
    parts += [Markup('<polyline class="bound" points="{}"/>').format(path)]
    faint = Markup('<circle class="row" cx="{:.1f}" cy="{:.1f}" r="2.2"/>')
    parts += [faint.format(ax.x(p.n), ax.y(p.attained)) for p in points if not p.power]
    for p in (p for p in points if p.power):
        title = f"N = {p.n}: attained {sci(p.attained)}, bound {sci(p.bound)}"
        parts.append(mark("cpu", ax.x(p.n), ax.y(p.attained), title))
    head = Markup('<svg class="plot" role="img" viewBox="0 0 {} {}" aria-label="{}">')
    shown = head.format(WIDTH, HEIGHT, f"Proven bound and attained error over N. {note}")
    return shown + Markup("").join(parts) + Markup("</svg>")
