"""A trace as a timeline: one lane for each kind of event, one column for each event, the state under it.

An event may be refused (what is right would not have done it) and may do harm (an obligation breaks there); the two are
drawn apart, because a bug is often done before it is felt. Text is plain ASCII. The SVG is inline, has no style sheet,
font or script of its own and takes its colour of text from the page; what is wrong is shown by shape and words too.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from markupsafe import Markup

GUTTER, COLUMN, WIDEST, ROW, LEADING, NARROWEST = 96, 88, 160, 24, 17, 480
LETTER = 6.6  # width of an average letter of a 12 px sans-serif font, in px
RED, AMBER = "#c62828", "#b26a00"
MOST = 12
LEFT_OUT = "left out"
"""The event of a tick that stands for others."""


@dataclass(frozen=True, slots=True)
class Tick:
    """One event: its kind, the state after it, a short note, and what is wrong with it.

    `refused` says why what is right would not have done it, `harm` which obligation breaks there.
    """

    event: str
    after: str
    note: str = ""
    refused: str = ""
    harm: str = ""

    @property
    def mark(self) -> str:
        """X where the event is refused, ! where it only does harm, : for events that are left out, else o."""
        return "X" if self.refused else "!" if self.harm else ":" if self.event == LEFT_OUT else "o"

    @property
    def words(self) -> str:
        """What is wrong, in words; the same words are said once."""
        return "; ".join(dict.fromkeys(w for w in (self.refused, self.harm) if w))


@dataclass(frozen=True)
class Timeline:
    """A title, the state at the start and the events. Raises ValueError without events."""

    title: str
    start: str
    ticks: tuple[Tick, ...]

    def __post_init__(self) -> None:
        if not self.ticks:
            raise ValueError("a timeline needs an event")

    @property
    def lanes(self) -> tuple[str, ...]:
        """Kinds of events, in order of first appearance."""
        return tuple(dict.fromkeys(t.event for t in self.ticks))

    @property
    def faults(self) -> tuple[tuple[int, Tick], ...]:
        """The ticks with something wrong, with their numbers from 1."""
        return tuple((i, t) for i, t in enumerate(self.ticks, 1) if t.words)


def as_json(line: Timeline) -> dict[str, Any]:
    """The timeline as JSON values, which `from_json` reads."""
    return asdict(line) | {"ticks": [asdict(t) for t in line.ticks]}


def from_json(data: Any) -> Timeline:
    """A timeline of JSON values. Raises ValueError for any other shape."""
    try:
        ticks = tuple(Tick(**row) for row in data["ticks"])
        line = Timeline(data["title"], data["start"], ticks)
    except (TypeError, KeyError) as error:
        raise ValueError(f"no timeline: {error}") from error
    words = [line.title, line.start, *(word for t in ticks for word in asdict(t).values())]
    if set(data) != {"title", "start", "ticks"} or not all(isinstance(word, str) for word in words):
        raise ValueError("no timeline: texts are expected, and nothing else")
    return line


def shortened(ticks: Sequence[Tick], most: int = MOST) -> tuple[Tick, ...]:
    """The ticks up to the last one with something wrong, at most `most` of them.

    What lies nearest to something wrong is kept, the first such first; each stretch that is cut becomes one tick with
    the number of its events. Raises ValueError for fewer than 3.
    """
    if most < 3:
        raise ValueError(f"a timeline cannot be cut to {most} ticks")
    wrong = [i for i, t in enumerate(ticks) if t.words] or [len(ticks) - 1]
    ticks = ticks[: wrong[-1] + 1]
    if len(ticks) <= most:
        return tuple(ticks)
    pinned = [wrong[0], wrong[-1]]
    order = sorted(range(len(ticks)), key=lambda i: (min(abs(i - w) for w in pinned), i not in pinned, i))
    kept: set[int] = set()
    for i in order:
        if len(_stated(ticks, kept | {i})) <= most:
            kept.add(i)
    return tuple(_stated(ticks, kept))


def _stated(ticks: Sequence[Tick], kept: set[int]) -> list[Tick]:
    """The kept ticks, and one for each stretch between them."""
    found: list[Tick] = []
    gap = 0
    for i, tick in enumerate(ticks):
        if i not in kept:
            gap += 1
            continue
        found += [Tick(LEFT_OUT, "...", f"{gap} events")] if gap > 1 else ticks[i - 1 : i] if gap else []
        found.append(tick)
        gap = 0
    return found


def as_lines(line: Timeline) -> list[str]:
    """The timeline with one event a line, for a narrow page: mark, number, event, note, state; then what is wrong."""
    names, notes = (max(len(getattr(t, part)) for t in line.ticks) for part in ("event", "note"))
    rows = enumerate(line.ticks, 1)
    drawn = [f"{t.mark} {i:>2} {t.event.ljust(names)}  {t.note.ljust(notes)}  {t.after}".rstrip() for i, t in rows]
    return drawn + [f"{t.mark} {i} {t.event}: {t.words}" for i, t in line.faults]


def as_svg(line: Timeline) -> Markup:
    """The timeline as one `svg` element for a page of HTML; every text in it is escaped."""
    column = max(COLUMN, min(WIDEST, round(LETTER * max(len(_head(i, t)) for i, t in enumerate(line.ticks, 1)) + 8)))
    states = [textwrap.wrap(t.after, int(column / LETTER)) or [""] for t in line.ticks]
    width = max(NARROWEST, GUTTER + column * (len(line.ticks) + 1))
    fit = int((width - 16) / LETTER)
    stated = [(row, t) for i, t in line.faults for row in textwrap.wrap(f"{i} {t.event}: {t.words}", fit)]
    titles = textwrap.wrap(line.title, fit)
    top = LEADING * len(titles) + ROW
    below = top + ROW * (len(line.lanes) + 1)
    under = below + LEADING * (max(map(len, states)) - 1)
    height = under + LEADING * len(stated) + ROW
    parts = [_text(8, LEADING * (i + 1), row, "start", "currentColor") for i, row in enumerate(titles)]
    parts += _lanes(line, top, width)
    for i, tick in enumerate(line.ticks):
        x = GUTTER + column * (i + 1.5)
        parts += [_text(x, top - 6, _head(i + 1, tick), "middle", "currentColor")]
        parts += [_mark(tick, x, top + ROW * (line.lanes.index(tick.event) + 0.5))]
        parts += [_text(x, below + LEADING * k, row, "middle", "currentColor") for k, row in enumerate(states[i])]
    parts += [_text(GUTTER - 8, below, "state", "end", "currentColor")]
    parts += [_text(GUTTER + column / 2, below, line.start, "middle", "currentColor")]
    for i, (row, tick) in enumerate(stated):
        parts.append(_text(8, under + ROW + LEADING * i, row, "start", RED if tick.refused else AMBER))
    label = "; ".join([line.title, *(f"event {i}, {t.event}: {t.words}" for i, t in line.faults)])
    head = Markup(
        '<svg role="img" viewBox="0 0 {} {}" width="{}" font-family="sans-serif" font-size="12" fill="currentColor" '
        'text-anchor="middle" aria-label="{}">'
    )
    return head.format(width, height, width, label) + Markup("").join(parts) + Markup("</svg>")


def _head(number: int, tick: Tick) -> str:
    return f"{number}" + (f" ({tick.note})" if tick.note else "")


def _lanes(line: Timeline, top: float, width: float) -> list[Markup]:
    rule = Markup('<line x1="{}" y1="{:.1f}" x2="{}" y2="{:.1f}" stroke="currentColor" stroke-opacity="0.25"/>')
    parts = []
    for i, lane in enumerate(line.lanes):
        y = top + ROW * (i + 0.5)
        parts += [rule.format(GUTTER, y, width - 8, y), _text(GUTTER - 8, y + 4, lane, "end", "currentColor")]
    return parts


def _mark(tick: Tick, x: float, y: float) -> Markup:
    """A dot, a cross where the event is refused, a triangle where it only does harm."""
    title = Markup("<title>{}</title>").format(tick.words) if tick.words else Markup("")
    if tick.refused:
        cross = Markup('<path d="M{:.1f} {:.1f}l12 12m0 -12l-12 12" stroke="{}" stroke-width="3">{}</path>')
        return cross.format(x - 6, y - 6, RED, title)
    if tick.event == LEFT_OUT:
        return _text(x, y + 4, "...", "middle", "currentColor")
    if tick.harm:
        return Markup('<path d="M{:.1f} {:.1f}l7 12h-14z" fill="{}">{}</path>').format(x, y - 7, AMBER, title)
    return Markup('<circle cx="{:.0f}" cy="{:.0f}" r="5"/>').format(x, y)


def _text(x: float, y: float, text: str, anchor: str, colour: str) -> Markup:
    """A text; the anchor and the colour that the drawing has anyway are not said again."""
    said = Markup("") if anchor == "middle" else Markup(' text-anchor="{}"').format(anchor)
    said += Markup("") if colour == "currentColor" else Markup(' fill="{}"').format(colour)
    return Markup('<text x="{:.0f}" y="{:.0f}"{}>{}</text>').format(x, y, said, text)
