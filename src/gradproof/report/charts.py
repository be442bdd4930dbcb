"""Measured accumulation error against its proven bound over N, log-log, one small inline SVG for each dtype.

Solid marks: the largest error at that N over all nets and examples, a circle for cpu, a diamond for any other
device, side by side. Faint marks: every row. Line: the largest bound proven for a row at that N. A row above its own
bound is a cross with a label, wherever it lies. Zeros, which have no logarithm, and what is ten decades below the
largest number stand in a strip of their own under the axis.
Colours come from the page's style sheet; text is escaped by markupsafe.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from markupsafe import Markup

from gradproof.report.consistency import Report, exceeds
from gradproof.report.text import clean, one_line, ratio, sci

# -- Measured rows of a report, gathered for a plot and its tables.
Row = Mapping[str, Any]
COLUMNS = ("accumulation", "end_to_end", "outside_assumptions")


@dataclass(frozen=True)
class Group:
    """All rows of one dtype, device and N: the row with the largest error, and the worst ratio of any of them."""

    dtype: str
    device: str
    n: int
    rows: int
    largest: Row
    worst_ratio: float | None
    above: int

    @property
    def verdict(self) -> str:
        """In words, against the bound."""
        if self.above:
            return f"ABOVE the bound in {self.above} of {self.rows} rows"
        return "no proven bound" if self.largest.get("bound") is None else "within"


@dataclass(frozen=True)
class Summary:
    """Differences without a proven bound of one device, dtype and note: the row with the largest, and what was run."""

    device: str
    dtype: str
    note: str
    rows: int
    nets: tuple[str, ...]
    sizes: tuple[int, ...]
    largest: Row


@dataclass(frozen=True)
class Quantity:
    """A quantity of the workspace's own, on one device and dtype: the row that comes nearest to its limit, and more."""

    name: str
    device: str
    dtype: str
    rows: int
    nets: tuple[str, ...]
    sizes: tuple[int, ...]
    nearest: Row
    above: int

    @property
    def verdict(self) -> str:
        """In words, against the limit."""
        if self.above:
            return f"ABOVE the limit in {self.above} of {self.rows} rows"
        return "no limit is stated" if self.nearest.get("bound") is None else "within"


def column(report: Report, name: str) -> list[Row]:
    """The rows of one column."""
    return [r for r in report["measurements"] if r["column"] == name]


def size(row: Row) -> float:
    """Measured error for ordering: a NaN sorts above everything."""
    value = float(row["measured"])
    return math.inf if math.isnan(value) else value


def groups(rows: Iterable[Row]) -> list[Group]:
    """One group for each dtype, device and N, in that order."""
    made = _gathered(rows, lambda r: (r["dtype"], r["device"], r["n"]))
    order = {dtype: place for place, dtype in enumerate(dict.fromkeys(key[0] for key in made))}
    found = []
    for (dtype, device, n), members in sorted(made.items(), key=lambda kv: (order[kv[0][0]], kv[0][1], kv[0][2])):
        ratios = [r["ratio"] for r in members if r.get("ratio") is not None]
        above = sum(exceeds(r) for r in members)
        top = max(members, key=size)
        found.append(Group(dtype, device, n, len(members), top, max(ratios, default=None), above))
    return found


def summaries(rows: Iterable[Row]) -> list[Summary]:
    """One summary for each device, dtype and note (what was compared, and in which mode), in order of appearance."""
    made = _gathered(rows, lambda r: (r["device"], r["dtype"], one_line(r.get("note") or "")))
    return [
        Summary(device, dtype, note, len(members), *_ran(members), max(members, key=size))
        for (device, dtype, note), members in made.items()
    ]


def quantities(report: Report) -> list[Quantity]:
    """One for each column of the workspace's own, device and dtype, in order of appearance, without rows not run."""
    own = [r for r in report["measurements"] if r["column"] not in COLUMNS and r["measured"] is not None]
    made = _gathered(own, lambda r: (one_line(r["column"]), r["device"], r["dtype"]))
    return [
        Quantity(
            name, device, dtype, len(members), *_ran(members), max(members, key=_share), sum(map(exceeds, members))
        )
        for (name, device, dtype), members in made.items()
    ]


def _gathered(rows: Iterable[Row], key: Callable[[Row], tuple[Any, ...]]) -> dict[tuple[Any, ...], list[Row]]:
    """The rows by their keys, in order of appearance."""
    made: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        made.setdefault(key(row), []).append(row)
    return made


def _ran(rows: Sequence[Row]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The nets of some rows in order of appearance, and their N in rising order."""
    return tuple(dict.fromkeys(r["net"] for r in rows)), tuple(sorted({r["n"] for r in rows}))


def _share(row: Row) -> tuple[float, float]:
    """How much of its limit a row takes, for ordering; a row above it comes before all others."""
    limit, value = row.get("bound"), size(row)
    if exceeds(row):
        return math.inf, value
    return (value / limit if limit else 0.0), value


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


# -- Several curves over one axis as a small SVG that stands alone: its style is inside it.
CURVES_WIDTH = 560
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
        return LEFT + (place - self.left) / (self.right - self.left) * (CURVES_WIDTH - LEFT - RIGHT)

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
    parts = [label.format(CURVES_WIDTH, height, frame.title), Markup("<style>{}</style>").format(Markup(STYLE))]
    parts += [text("title", CURVES_WIDTH / 2, TOP, frame.title, "middle"), *_grid(scale, frame)]
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
        parts.append(line("grid", LEFT, scale.y(y), CURVES_WIDTH - RIGHT, scale.y(y)))
        parts.append(text("tick", LEFT - 7, scale.y(y) + 4, f"{y:g}", "end"))
    powers = [2.0**i for i in range(math.ceil(scale.left), math.floor(scale.right) + 1)] if scale.log else []
    for x in powers or _ticks(scale.left, scale.right):
        parts.append(line("grid", scale.x(x), TOP + 16, scale.x(x), HEIGHT - BOTTOM))
        parts.append(text("tick", scale.x(x), HEIGHT - BOTTOM + 16, f"{x:g}", "middle"))
    parts.append(line("axis", LEFT, TOP + 16, LEFT, HEIGHT - BOTTOM))
    parts.append(line("axis", LEFT, HEIGHT - BOTTOM, CURVES_WIDTH - RIGHT, HEIGHT - BOTTOM))
    parts.append(text("label", (LEFT + CURVES_WIDTH - RIGHT) / 2, HEIGHT - 24, frame.across, "middle"))
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


# -- Proven bound and attained error of accumulation over N, log-log, one small inline SVG for each buffer.
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
class RoundingPanel:
    """One buffer: its SVG, the text alternative, and the points at N = 2^k."""

    buffer: str
    svg: Markup
    note: str
    powers: tuple[Both, ...]


def rounding_panels(document: Document) -> list[RoundingPanel]:
    """One panel for each series of a rounding study that has a point above zero."""
    made = []
    for row in document["series"]:
        points = both(row)
        drawn = [p for p in points if p.bound > 0]
        if drawn:
            asked = tolerances(document, row["buffer"])
            note = describe_rounding(row["buffer"], drawn)
            made.append(
                RoundingPanel(
                    row["buffer"], _rounding_svg(drawn, asked, note), note, tuple(p for p in points if p.power)
                )
            )
    return made


def both(series: Mapping[str, Any]) -> list[Both]:
    """The points of a series as floats."""
    rows = ((p["n"], float(Fraction(p["bound"])), float(Fraction(p["attained"])), p["ratio"]) for p in series["points"])
    return [Both(*row) for row in rows]


def tolerances(document: Document, buffer: str) -> dict[str, float]:
    """The tolerances that gradients of the buffer's own format are asked about there, by their text."""
    rows = [r for r in document["thresholds"] if r["buffer"] == buffer == r["gradients"]]
    return {r["tolerance"]: float(Fraction(r["tolerance"])) for r in rows}


def describe_rounding(buffer: str, points: Sequence[Both]) -> str:
    """The text alternative: ends of the range, and how far the sides are apart."""
    ends = [f"N = {p.n}: bound {sci(p.bound)}, attained {sci(p.attained)}" for p in (points[0], points[-1])]
    words = [f"{clean(buffer)} buffer, left to right. {'; '.join(dict.fromkeys(ends))}"]
    powers = [p.ratio for p in points if p.power and p.ratio is not None]
    others = [p.ratio for p in points if not p.power and p.ratio is not None]
    words += [f"largest bound over attained at N = 2^k: {ratio(max(powers))}"] if powers else []
    words += [f"at other N up to {max(p.n for p in points if not p.power)}: {ratio(max(others))}"] if others else []
    return "; ".join(words) + "."


def rounding_axes(points: Sequence[Both], asked: Mapping[str, float]) -> Axes:
    """Whole decades around the positive numbers; the sizes are powers of two."""
    positive = [v for p in points for v in (p.bound, p.attained) if v > 0] + [v for v in asked.values() if v > 0]
    high = math.ceil(math.log10(max(positive)))
    low = max(min(math.floor(math.log10(min(positive))), high - 1), high - DECADES)
    last = max(2 * points[0].n, *(p.n for p in points))
    sizes = [2**k for k in range((last - 1).bit_length() + 1) if 2**k >= points[0].n]
    return Axes(tuple(sizes), low, high, "0" if any(p.attained == 0 for p in points) else "")


def _rounding_svg(points: Sequence[Both], asked: Mapping[str, float], note: str) -> Markup:
    ax = rounding_axes(points, asked)
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
