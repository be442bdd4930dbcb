"""The events of every window of a watched run: windows that are not recorded are compared with those that are.

A window begins with its first backward pass. What comes after its step belongs to it, until the next backward pass.
Nothing that these events show makes an obligation hold: a window that is not like a recorded one is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from gradproof.shadow.locations import NOWHERE, Location, user_location

PASS, STEP, ZERO, CLIP, UNSCALE, SCHEDULE, LEFT = (
    "backward pass", "step", "zeroing", "clip", "unscaling", "step of a schedule", "gradient that was there before it",
)  # fmt: skip
KEPT = 8
"""Numbers of windows that are kept of those that are alike."""
MOST = 256
"""Kinds of windows that are kept."""
Act = tuple[str, Location]
Counted = tuple[tuple[Act, int], ...]


@dataclass(slots=True)
class Alike:
    """Windows that have the same events: how many, and the numbers of the first of them."""

    count: int = 0
    numbers: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class NotJudged:
    """Windows that have other events than every recorded one, and in what they differ."""

    count: int
    first: int
    reason: str
    location: Location


class RunEvents:
    """The events of a run. `number`: the present window, counted from 0; `steps`: whether it was stepped."""

    def __init__(self) -> None:
        self.number = 0
        self.open = self.stepped = False
        self.recorded: set[int] = set()
        self._acts: list[Act] = []
        self._until = 0
        self._kinds: dict[tuple[Counted, Counted], Alike] = {}
        self._recorded: set[tuple[Counted, Counted]] = set()
        self.more = 0

    def begins(self, held: int = 0) -> None:
        """A backward pass begins: the first of a window where a step came before. `held`: gradients that are there."""
        if self.stepped:
            self._close()
        if not self.open:
            self._acts = [(LEFT, NOWHERE)] * held
        self.open = True
        self._acts.append((PASS, user_location()))

    def event(self, kind: str) -> None:
        """Something that happens at a line of the user's; before the first backward pass it belongs to no window."""
        if self.open:
            self._acts.append((kind, user_location()))
            if kind == STEP:
                self.stepped, self._until = True, len(self._acts)

    def _close(self) -> None:
        after = self._acts[self._until :]
        if sum(what == SCHEDULE for what, _ in after) == 1:  # one that follows epochs, or each step
            after = [act for act in after if act[0] != SCHEDULE]
        kind = (counted(self._acts[: self._until]), counted(after))
        if self.number in self.recorded:
            self._recorded.add(kind)
        if kind in self._kinds or len(self._kinds) < MOST:
            alike = self._kinds.setdefault(kind, Alike())
            alike.count += 1
            if len(alike.numbers) < KEPT:
                alike.numbers.append(self.number)
        else:
            self.more += 1
        self.number, self.open, self.stepped, self._acts, self._until = self.number + 1, False, False, [], 0

    @property
    def windows(self) -> int:
        """The windows that were stepped."""
        return self.number + self.stepped

    def others(self) -> Iterator[NotJudged]:
        """The windows that are like no recorded one. What came after the run's last step is not compared."""
        last = None
        if self.stepped:
            last = self.number
            self._close()
        bodies = {body for body, _ in self._recorded}
        for kind, alike in self._kinds.items():
            final = alike.numbers == [last] and kind[0] in bodies
            if kind not in self._recorded and not final and self._recorded:
                yield NotJudged(alike.count, alike.numbers[0], *self._difference(kind))

    def _difference(self, kind: tuple[Counted, Counted]) -> tuple[str, Location]:
        """In what a window differs from the recorded ones: the backward passes first, then what has more or less."""
        mine = passes(kind[0])
        known = sorted({passes(body) for body, _ in self._recorded})
        if mine not in known:
            right = " or ".join(map(str, known))
            return f"has {mine} backward passes where the recorded ones have {right}", line_of(kind[0], PASS)
        acts, every = Counter[Act](), set[Act]()
        for one in self._recorded:
            every |= {act for act, _ in one[0] + one[1]}
        for act, times in kind[0] + kind[1]:
            acts[act] += times
        more = next((act for act in acts if act not in every), None)
        if more is not None:
            return f"has {acts[more]} x {shown_act(more)}, which no recorded one has", more[1]
        less = next((act for act in sorted(every, key=str) if act not in acts), None)
        if less is not None:
            return f"has no {shown_act(less)}, which a recorded one has", line_of(kind[0], STEP)
        return "has the events of the recorded ones in another number or order", line_of(kind[0], STEP)


def shown_act(act: Act) -> str:
    """An event with its line."""
    what, location = act
    return what + (f" at {Path(location.file).name}:{location.line}" if location != NOWHERE else "")


def counted(acts: Sequence[Act]) -> Counted:
    """Events in a row that are alike, as one with its number."""
    return tuple((act, len(list(same))) for act, same in groupby(acts))


def passes(events: Counted) -> int:
    """The backward passes among some events."""
    return sum(times for (kind, _), times in events if kind == PASS)


def line_of(events: Counted, kind: str) -> Location:
    """The last line of a kind of event."""
    return next((location for (one, location), _ in reversed(events) if one == kind), NOWHERE)
