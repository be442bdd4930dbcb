"""Several curves over one axis as a small SVG that stands alone: its style is inside it.

Both axes are linear, or the lower one goes by powers of two. Text is escaped by markupsafe.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from gradproof.render.plot import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, line, text

WIDTH = 560
COLOURS = ("#1b6ca8", "#c2410c", "#15803d", "#7e22ce", "#57534e")
STYLE = (
    "text{font:11px sans-serif;fill:#57534e}.grid{stroke:#e7e5e4}.axis{stroke:#57534e}"
    ".curve{fill:none;stroke-width:1.6}.title{font-weight:bold;fill:#1c1917}svg{background:#fff}"
)
DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 2")


@dataclass(frozen=True)
class Curve:
    """A name for the legend and the points, of at least one, x in rising order and all of them finite."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Frame:
    """What stands around the curves. `log` takes powers of two on the lower axis, where x is at least 1."""

    title: str
    across: str
    upright: str
    log: bool = False


@dataclass(frozen=True)
class Scale:
    """Data to pixels."""

    left: float
    right: float
    low: float
    high: float
    log: bool

    def x(self, value: float) -> float:
        """Column of a value."""
        place = math.log2(value) if self.log else value
        return LEFT + (place - self.left) / (self.right - self.left) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Row of a value."""
        return HEIGHT - BOTTOM - (value - self.low) / (self.high - self.low) * (HEIGHT - BOTTOM - TOP - 16)


def svg(curves: Sequence[Curve], frame: Frame) -> str:
    """The drawing. Raises ValueError where there is nothing to draw or a number is not finite."""
    points = [p for c in curves for p in c.points]
    if not points or not all(math.isfinite(v) for p in points for v in p):
        raise ValueError("curves need points, and finite ones")
    scale = _scale(points, frame.log)
    label = Markup('<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {} {}" aria-label="{}">')
    height = HEIGHT + 16 * len(curves)
    parts = [label.format(WIDTH, height, frame.title), Markup("<style>{}</style>").format(Markup(STYLE))]
    parts += [text("title", WIDTH / 2, TOP, frame.title, "middle"), *_grid(scale, frame)]
    for i, curve in enumerate(curves):
        parts += _curve(curve, scale, i)
    return str(Markup("\n").join([*parts, Markup("</svg>\n")]))


def _scale(points: Sequence[tuple[float, float]], log: bool) -> Scale:
    across = [math.log2(x) if log else x for x, _ in points]
    low, high = min(0.0, *(y for _, y in points)), max(y for _, y in points)
    left, right = min(across), max(across)
    return Scale(left, right if right > left else left + 1, low, high if high > low else low + 1, log)


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers from low to high."""
    step = 10 ** math.floor(math.log10((high - low) / 4))
    step *= next(m for m in (1, 2, 5, 10) if (high - low) / (m * step) <= 6)
    return [round(i * step, 12) for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _grid(scale: Scale, frame: Frame) -> list[Markup]:
    parts = []
    for y in _ticks(scale.low, scale.high):
        parts.append(line("grid", LEFT, scale.y(y), WIDTH - RIGHT, scale.y(y)))
        parts.append(text("tick", LEFT - 7, scale.y(y) + 4, f"{y:g}", "end"))
    powers = [2.0**i for i in range(math.ceil(scale.left), math.floor(scale.right) + 1)] if scale.log else []
    for x in powers or _ticks(scale.left, scale.right):
        parts.append(line("grid", scale.x(x), TOP + 16, scale.x(x), HEIGHT - BOTTOM))
        parts.append(text("tick", scale.x(x), HEIGHT - BOTTOM + 16, f"{x:g}", "middle"))
    parts.append(line("axis", LEFT, TOP + 16, LEFT, HEIGHT - BOTTOM))
    parts.append(line("axis", LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM))
    parts.append(text("label", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 24, frame.across, "middle"))
    turned = Markup('<text class="label" transform="translate(14 {:.1f}) rotate(-90)" text-anchor="middle">{}</text>')
    parts.append(turned.format((TOP + HEIGHT - BOTTOM) / 2, frame.upright))
    return parts


def _curve(curve: Curve, scale: Scale, i: int) -> list[Markup]:
    """The curve and its line in the legend."""
    colour, dash = COLOURS[i % len(COLOURS)], DASHES[i % len(DASHES)]
    drawn = Markup('<polyline class="curve" stroke="{}" stroke-dasharray="{}" points="{}"/>')
    path = " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in curve.points)
    y = HEIGHT - 4 + 16 * i
    key = drawn.format(colour, dash, f"{LEFT},{y} {LEFT + 36},{y}")
    return [drawn.format(colour, dash, path), key, text("label", LEFT + 44, y + 4, curve.name, "start")]
