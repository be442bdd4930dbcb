"""Charts as small SVGs, and the measured rows behind them. Whatever is drawn is one panel of curves on two axes.

`panels`: measured error against its proven bound over N. Solid marks are the largest error at that N, a circle for cpu,
a diamond for any other device, side by side; faint marks are all rows; the line is the largest bound of a solid mark; a
row above its own bound is a cross with a label. `rounding_panels`: proven bound and attained error for each buffer.
On a logarithmic axis zeros and what is ten decades below the largest number stand in a strip of their own under it.
A page's style sheet colours its charts; one that stands alone has its style inside. markupsafe escapes all text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from markupsafe import Markup

from gradproof.report.consistency import Report, exceeds
from gradproof.report.text import clean, one_line, ratio, sci

Row = Mapping[str, Any]
COLUMNS = ("accumulation", "end_to_end", "outside_assumptions")
WIDTH, HEIGHT, DECADES = 360, 290, 10
LEFT, RIGHT, TOP, BOTTOM = 62, WIDTH - 14, 14, HEIGHT - 58
STRIP, INSET, LEADING, APART = 24, 14, 16, 27  # at least so far apart are the labels of an axis
OVER_N = "N (micro-batches in a step)"
PLACE: Mapping[int, Callable[[float], float]] = {0: float, 2: math.log2, 10: math.log10}
COLOURS = ("#1b6ca8", "#c2410c", "#15803d", "#7e22ce", "#57534e")
DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 2")
STYLE = Markup(
    "<style>text{font:11px sans-serif;fill:#57534e}.grid{stroke:#e7e5e4}.axis{stroke:#57534e}"
    ".curve{fill:none;stroke-width:1.6}text.title{font-weight:bold;fill:#1c1917}svg{background:#fff}</style>"
)
ALONE = Markup('xmlns="http://www.w3.org/2000/svg" width="540"')
SHAPES = {
    "row": Markup('<circle class="row" cx="{:.1f}" cy="{:.1f}" r="2.2">{}</circle>'),
    "measured": Markup('<circle class="measured" cx="{:.1f}" cy="{:.1f}" r="4.2">{}</circle>'),
    "measured other": Markup('<path class="measured other" d="M{:.1f} {:.1f}m0 -5l5 5l-5 5l-5 -5z">{}</path>'),
    "bound": Markup('<path class="bound" d="M{:.1f} {:.1f}m-6 0h12">{}</path>'),
    "tolerance": Markup('<path class="tolerance" d="M{:.1f} {:.1f}m-8 0h16">{}</path>'),
    "above": Markup('<path class="above" d="M{:.1f} {:.1f}m-5 -5l10 10m0 -10l-10 10">{}</path>'),
}


@dataclass(frozen=True)
class RowGroup:
    """Rows of one dtype, device and name (N, what was compared, or a quantity): what was run, and the worst of them."""

    dtype: str
    device: str
    name: str
    rows: int
    nets: tuple[str, ...]
    sizes: tuple[int, ...]
    worst: Row
    worst_ratio: float | None
    above: int
    verdict: str


def column(report: Report, name: str) -> list[Row]:
    """The rows of one column."""
    return [r for r in report["measurements"] if r["column"] == name]


def _size(row: Row) -> tuple[float, ...]:
    """Measured error for ordering: a NaN sorts above everything."""
    value = float(row["measured"])
    return (math.inf if math.isnan(value) else value,)


def _share(row: Row) -> tuple[float, ...]:
    """How much of its limit a row takes, for ordering; a row above it comes before all others."""
    limit, value = row.get("bound"), _size(row)
    return (math.inf if exceeds(row) else value[0] / limit if limit else 0.0, *value)


def _gathered(rows: Iterable[Row], name: Callable[[Row], str]) -> list[RowGroup]:
    """The rows by dtype, device and name; a quantity of the workspace's own has a limit, all else a bound."""
    made: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        made.setdefault((row["dtype"], row["device"], name(row)), []).append(row)
    found = []
    for key, members in made.items():
        own = members[0]["column"] not in COLUMNS
        worst, above = max(members, key=_share if own else _size), sum(map(exceeds, members))
        share = max((r["ratio"] for r in members if r.get("ratio") is not None), default=None)
        verdict = "within" if worst.get("bound") is not None else "no limit is stated" if own else "no proven bound"
        verdict = f"ABOVE the {'limit' if own else 'bound'} in {above} of {len(members)} rows" if above else verdict
        ran = tuple(dict.fromkeys(r["net"] for r in members)), tuple(sorted({r["n"] for r in members}))
        found.append(RowGroup(*key, len(members), *ran, worst, share, above, verdict))
    return found


def groups(rows: Iterable[Row]) -> list[RowGroup]:
    """One group for each dtype, device and N, in that order; its worst row has the largest error."""
    found = _gathered(rows, lambda r: str(r["n"]))
    dtypes = list(dict.fromkeys(g.dtype for g in found))
    return sorted(found, key=lambda g: (dtypes.index(g.dtype), g.device, g.sizes))


def summaries(rows: Iterable[Row]) -> list[RowGroup]:
    """One for each device, dtype and note (what was compared, and in which mode), in order of appearance."""
    return _gathered(rows, lambda r: one_line(r.get("note") or ""))


TOLERATED = (
    "The tolerance judges the accumulation error alone, and an error equal to it passes: the strict < of the field's "
    "contract is read as ≤. The end-to-end difference stands beside it, and no tolerance judges it: it holds the "
    "rounding inside each micro-batch's gradient too, which the full batch in the same dtype makes as well, at any N."
)
"""Which of the two measured figures the tolerance gates, and why."""


def apart(report: Report) -> dict[tuple[str, str, int], float]:
    """The largest end-to-end difference of each dtype, device and N; NaN counts as the largest."""
    made: dict[tuple[str, str, int], float] = {}
    for row in sorted(column(report, "end_to_end"), key=_size):
        made[row["dtype"], row["device"], row["n"]] = row["measured"]
    return made


def tolerated(row: Row) -> str:
    """A row's tolerance, as it is judged."""
    return sci(None) if row.get("tolerance") is None else f"≤ {sci(row['tolerance'])}"


def quantities(report: Report) -> list[RowGroup]:
    """One for each column of the workspace's own, device and dtype; its worst row comes nearest to its limit."""
    own = [r for r in report["measurements"] if r["column"] not in COLUMNS and r["measured"] is not None]
    return _gathered(own, lambda r: one_line(r["column"]))


@dataclass(frozen=True)
class Axis:
    """Data to pixels: `low` at `start`, `high` at `end`, powers of a `base` that is not 0; lower in a named `strip`."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]
    base: int = 0
    strip: str = ""

    def at(self, value: float) -> float:
        """The pixel of a value: what is too low goes to the strip, what is not finite to the end."""
        if self.base and value < float(self.base) ** self.low:
            return self.start + STRIP / 2
        if not math.isfinite(value):
            return self.end
        return self.start + (PLACE[self.base](value) - self.low) / (self.high - self.low) * (self.end - self.start)

    def labels(self) -> Iterator[tuple[float, str]]:
        """Pixels and words of as many ticks as have room, and of the strip."""
        for value in self.ticks[:: math.ceil(len(self.ticks) * APART / abs(self.end - self.start))]:
            power = f"{math.log10(value):.0f}".replace("-", "−") if self.base == 10 else ""
            yield self.at(value), Markup('10<tspan dy="-4">{}</tspan>').format(power) if power else f"{value:.15g}"
        if self.strip:
            yield self.at(0), self.strip


def axis(values: Sequence[float], base: int, start: float, end: float, ticks: Sequence[float] = ()) -> Axis:
    """From the least to the largest value with round numbers, or whole powers of a base, at most DECADES of ten."""
    if not base:
        low, high = min(values), max(values) if max(values) > min(values) else min(values) + 1
        step = 10 ** math.floor(math.log10((high - low) / 4))
        step *= next(m for m in (1, 2, 5, 10) if (high - low) / (m * step) <= 6)
        numbers = (round(i * step, 12) for i in range(math.ceil(low / step), math.floor(high / step) + 1))
        return Axis(low, high, start, end, tuple(numbers))
    places = [PLACE[base](v) for v in values if v > 0 and math.isfinite(v)] or [-1.0]
    first, last = math.floor(min(places)), max(math.ceil(max(places)), math.floor(min(places)) + 1)
    first = max(first, last - DECADES) if base == 10 else first
    lower = [v for v in values if v < float(base) ** first]
    strip = ("lower" if any(lower) else "0") if lower else ""
    powers = ticks or [float(base) ** power for power in range(first, last + 1)]
    return Axis(first, last, start - STRIP if strip else start, end, tuple(powers), base, strip)


@dataclass(frozen=True)
class Curve:
    """A name for the legend, points with x in rising order, what they are drawn as, and words for each.

    A kind of SHAPES is drawn at each point, `aside` pixels to the right; "curve" is a line, "bound" a line and shapes.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    kind: str = "curve"
    stated: tuple[str, ...] = ()
    aside: float = 0.0


@dataclass(frozen=True)
class Panel:
    """One chart: a title, the words at its axes, what is drawn, and the bases of the logarithms, 0 for none.

    On a page it has a name, a note that tells it in words, and the rows behind it. Without a note it stands alone;
    raises ValueError where that has no point, or one that is not finite.
    """

    title: str
    across: str
    upright: str
    curves: tuple[Curve, ...]
    log: tuple[int, int] = (0, 0)
    ticks: tuple[float, ...] = ()
    name: str = ""
    note: str = ""
    rows: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        values = [v for c in self.curves for p in c.points for v in p]
        if not self.note and not (values and all(map(math.isfinite, values))):
            raise ValueError("curves need points, and finite ones")

    @cached_property
    def x(self) -> Axis:
        """The axis across."""
        return axis([x for c in self.curves for x, _ in c.points], self.log[0], LEFT + INSET, RIGHT - INSET, self.ticks)

    @cached_property
    def y(self) -> Axis:
        """The axis upright; without a logarithm it holds zero."""
        values = [y for c in self.curves for _, y in c.points] + ([] if self.log[1] else [0.0])
        return axis(values, self.log[1], BOTTOM, TOP)

    @property
    def svg(self) -> Markup:
        """The drawing."""
        parts = [*_axes(self), *(part for i, c in enumerate(self.curves) for part in _drawn(self, c, i))]
        head = Markup('<svg {} role="img" viewBox="0 {} {} {}" aria-label="{}">')
        if self.note:
            head = head.format(Markup('class="plot"'), 0, WIDTH, HEIGHT, f"{self.title}. {self.note}")
            return Markup("").join([head, *parts, Markup("</svg>")])
        head = head.format(ALONE, -LEADING, WIDTH, HEIGHT + LEADING * (len(self.curves) + 1), self.title)
        for i, c in enumerate(self.curves):
            y = HEIGHT - 4 + LEADING * i
            parts += [line(c.kind, [(LEFT, y), (LEFT + 36, y)], i), text("label", LEFT + 44, y + 4, c.name, "start")]
        return Markup("\n").join([head, STYLE, text("title", WIDTH / 2, -2, self.title), *parts, Markup("</svg>\n")])


def _axes(p: Panel) -> Iterator[Markup]:
    yield from (line("grid", [(LEFT, p.y.at(value)), (RIGHT, p.y.at(value))]) for value in p.y.ticks)
    yield from (line("grid", [(p.x.at(value), TOP), (p.x.at(value), BOTTOM)]) for value in p.x.ticks)
    yield from (text("tick", LEFT - 7, y + 4, words, "end") for y, words in p.y.labels())
    yield from (text("tick", x, BOTTOM + 16, words) for x, words in p.x.labels())
    yield line("axis", [(LEFT, TOP), (LEFT, p.y.start)]) + line("axis", [(LEFT, BOTTOM), (RIGHT, BOTTOM)])
    yield text("label", (LEFT + RIGHT) / 2, HEIGHT - 22, p.across)
    yield text("label", 14, (TOP + BOTTOM) / 2, p.upright, turn=" rotate(-90)")


def _drawn(p: Panel, c: Curve, i: int) -> Iterator[Markup]:
    """A curve: its line, which does not lead into the strip, and the shapes of its points with their words."""
    places = [(p.x.at(x) + c.aside, p.y.at(y)) for x, y in c.points]
    if c.kind in ("curve", "bound"):
        yield line(c.kind, [place for place in places if place[1] <= p.y.start], i)
    for (value, _), (x, y), stated in zip(c.points, places, c.stated or [""] * len(places), strict=True):
        if c.kind == "tolerance":
            yield line(c.kind, [(LEFT, y), (RIGHT, y)]) + text("tick", RIGHT - 4, y - 4, stated, "end")
        elif c.kind == "above":
            where = "end" if x > WIDTH * 0.75 else "start" if x < LEFT + 50 else "middle"
            yield SHAPES[c.kind].format(x, y, "") + text(c.kind, x, y - 9 if y > TOP + 16 else y + 18, stated, where)
        elif c.kind != "curve" and (c.kind != "bound" or value in p.x.ticks):
            yield SHAPES[c.kind].format(x, y, Markup("<title>{}</title>").format(stated) if stated else "")


def line(kind: str, places: Sequence[tuple[float, float]], i: int = 0) -> Markup:
    """A line of a kind that the style sheet knows; a curve has the i-th colour and dashes."""
    own = Markup(' stroke="{}" stroke-dasharray="{}"').format(COLOURS[i % len(COLOURS)], DASHES[i % len(DASHES)])
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    made = Markup('<polyline class="{}"{} points="{}"/>').format(kind, own if kind == "curve" else "", path)
    return made if path else Markup("")


def text(kind: str, x: float, y: float, words: str, where: str = "middle", turn: str = "") -> Markup:
    """Words at a place, if there are any; `where` is start, middle or end."""
    made = Markup('<text class="{}" transform="translate({:.1f} {:.1f}){}" text-anchor="{}">{}</text>')
    return made.format(kind, x, y, turn, where, words) if words else Markup("")


def panels(rows: Sequence[Row]) -> list[Panel]:
    """One panel for each dtype of the accumulation rows, in order of appearance, with its groups."""
    dtypes = dict.fromkeys(r["dtype"] for r in rows)
    return [_errors(dtype, [r for r in rows if r["dtype"] == dtype]) for dtype in dtypes]


def _errors(dtype: str, rows: Sequence[Row]) -> Panel:
    found = groups(rows)
    bounds = dict(sorted(_points([g.worst for g in found if g.worst.get("bound") is not None], "bound")))
    asked = sorted({float(r["tolerance"]) for r in rows if r.get("tolerance")})
    ticks = tuple(sorted({r["n"] for r in rows}))
    above = sorted(filter(exceeds, rows), key=_size, reverse=True)
    sizes = [r["n"] for r in above]
    words = ["" if n in sizes[:i] else f"{sizes.count(n)} above" for i, n in enumerate(sizes)]
    devices, solid = list(dict.fromkeys(g.device for g in found)), []
    for i, device in enumerate(devices):
        worst = [g.worst for g in found if g.device == device]
        stated = [f"{clean(device)}, N = {r['n']}: {sci(r['measured'])}, bound {sci(r.get('bound'))}" for r in worst]
        kind, aside = "measured" if device == "cpu" else "measured other", 10 * (i - (len(devices) - 1) / 2)
        solid.append(Curve(f"largest measured, {device}", _points(worst, "measured"), kind, tuple(stated), aside))
    curves = (
        Curve("contract’s tolerance", tuple((ticks[0], v) for v in asked), "tolerance"),
        Curve("proven bound", tuple(bounds.items()), "bound"),
        Curve("each row", _points(rows, "measured"), "row"),
        *solid,
        Curve("above its bound", _points(above, "measured"), "above", tuple(words)),
    )
    ends = found[0].worst, found[-1].worst
    tale = [f"N = {r['n']} on {clean(r['device'])}: measured {sci(r['measured'])}" for r in ends]
    ratios = [g.worst_ratio for g in found if g.worst_ratio is not None]
    tale += [f"largest measured over proven: {ratio(max(ratios))}" if ratios else "no proven bound"]
    note = f"{clean(dtype)}. {'; '.join(tale)}; {len(above)} of {len(rows)} rows above their bound."
    title, upright = "Measured error and proven bound over N", "max |error| per element"
    return Panel(title, OVER_N, upright, curves, (2, 10), ticks, dtype, note, tuple(found))


def rounding_panels(document: Mapping[str, Any]) -> list[Panel]:
    """One panel for each series of a rounding study that has a bound above zero, with its rows at N = 2^k."""
    drawn = [s for s in document["series"] if any(float(Fraction(p["bound"])) > 0 for p in s["points"])]
    return [_rounding(s["buffer"], s["points"], document["thresholds"]) for s in drawn]


def _rounding(buffer: str, series: Iterable[Row], thresholds: Iterable[Row]) -> Panel:
    points = [{**p, "bound": float(Fraction(p["bound"])), "attained": float(Fraction(p["attained"]))} for p in series]
    asked = tuple(dict.fromkeys(r["tolerance"] for r in thresholds if r["buffer"] == buffer == r["gradients"]))
    shown, powers = [p for p in points if p["bound"] > 0], [p for p in points if p["n"] & (p["n"] - 1) == 0]
    solid, faint = [p for p in shown if p in powers], [p for p in shown if p not in powers]
    stated = [f"N = {p['n']}: attained {sci(p['attained'])}, bound {sci(p['bound'])}" for p in solid]
    ends = [f"N = {p['n']}: bound {sci(p['bound'])}, attained {sci(p['attained'])}" for p in (shown[0], shown[-1])]
    words = list(dict.fromkeys(ends))
    last = max((p["n"] for p in faint), default=0)
    for name, rows in ("largest bound over attained at N = 2^k", solid), (f"at other N up to {last}", faint):
        ratios = [p["ratio"] for p in rows if p["ratio"] is not None]
        words += [f"{name}: {ratio(max(ratios))}"] if ratios else []
    curves = (
        Curve("tolerance", tuple((shown[0]["n"], float(Fraction(t))) for t in asked), "tolerance", asked),
        Curve("bound, proved for every input", _points(shown, "bound"), "bound"),
        Curve("attained, other N", _points(faint, "attained"), "row"),
        Curve("attained by a constructed input, N = 2^k", _points(solid, "attained"), "measured", tuple(stated)),
    )
    title, upright = "Proven bound and attained error over N", "|error|, in units of the gradient"
    note = f"{clean(buffer)} buffer, left to right. {'; '.join(words)}."
    return Panel(title, OVER_N, upright, curves, (2, 10), (), buffer, note, tuple(powers))


def _points(rows: Iterable[Row], name: str) -> tuple[tuple[float, float], ...]:
    return tuple((r["n"], float(r[name])) for r in rows)
