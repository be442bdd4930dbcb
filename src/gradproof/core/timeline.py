"""A trace as a timeline: its events in order, each with the state after it.

An event may be refused (what is right would not have done it) and may do harm (an obligation breaks there); the two are
marked apart, because a bug is often done before it is felt. Text is plain ASCII; report/formats/timeline.html.j2 shows
the same on a page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

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
