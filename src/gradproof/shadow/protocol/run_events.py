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
from typing import Any

from gradproof.shadow.locations import NOWHERE, Location, user_location

PASS, STEP, ZERO, CLIP, UNSCALE, SCHEDULE, LEFT = (
    "backward pass", "step", "zeroing", "clip", "unscaling", "step of a schedule", "gradient that was there before it",
)  # fmt: skip
RATE, AVERAGED, REWRITTEN, ABORTED, THREADS = "rate", "averaged", "rewritten", "aborted", "threads"
"""What is kept of recorded windows besides: a learning rate set by hand, an average of the weights, weights that no
step wrote, a backward pass that raised, and one that began while that of another thread ran."""
MOST = 256
"""Kinds of windows that are kept."""
Act = tuple[str, Location]
Counted = tuple[tuple[Act, int], ...]


@dataclass
class Iteration:
    """One pass over a DataLoader, and how backward passes followed its batches."""

    length: int | None = None
    sizes: set[int | None] = field(default_factory=set)
    read: int = 0
    ended: bool = False
    passes: int = 0
    since: int = 0
    most: int = 1
    late: int = 0

    @property
    def stated(self) -> bool:
        """Whether its batches and the backward passes went together: it was not read to its end beforehand."""
        return self.late <= self.most

    @property
    def complete(self) -> bool:
        """Whether every batch was read."""
        return self.ended or self.read == self.length

    @property
    def trained(self) -> bool:
        """Whether every batch was read and each was followed by a backward pass."""
        return self.complete and self.passes >= self.read

    @property
    def size(self) -> int | None:
        """Rows of a batch, where all batches had as many and each was one micro-batch."""
        return next(iter(self.sizes)) if len(self.sizes) == 1 and self.passes <= self.read else None


@dataclass(frozen=True)
class Arrival:
    """What was known when a backward pass had ended: the batches that it follows, and the forward passes before it.

    `trained` says that it was the pass of the last batch; `read` counts the batches until now. `forwards` counts the
    calls of the first module since the pass before; it is 0 where no module was called, or no more is looked at.
    `passes` counts the backward passes of the run until now.
    `ahead`: it is the last of as many as there were batches, which were read before; so it follows no batch of its own.
    `again`: one of its parts with weights was called more than once, as where a module sums several micro-batches.
    """

    iteration: Iteration | None
    trained: bool
    read: int
    forwards: int
    passes: int = 0
    ahead: bool = False
    again: bool = False


@dataclass(slots=True, eq=False)
class SeenEvent:
    """An event, which is kept where its window is recorded. `about`: what else is known of it."""

    kind: str
    location: Location
    about: Any = None
    kept: bool = False


@dataclass(frozen=True, slots=True)
class NotJudged:
    """Windows that have other events than every recorded one, and in what they differ."""

    count: int
    first: int
    reason: str


class RunEvents:
    """The events of a run. `number`: the present window, counted from 0; `stepped`: whether it was.

    `seen`: the events of the recorded windows, and the first backward pass after each.
    """

    def __init__(self) -> None:
        self.number = 0
        self.open = self.stepped = False
        self.recorded: set[int] = set()
        self._acts: list[Act] = []
        self._until = 0
        self._kinds: dict[tuple[Counted, Counted], tuple[int, int]] = {}  # how many, and the first of them
        self._recorded: set[tuple[Counted, Counted]] = set()
        self.more = 0
        self.seen: dict[int, list[SeenEvent]] = {}

    def kept(self) -> list[list[SeenEvent]]:
        """The events of each recorded window."""
        return [own for number, own in sorted(self.seen.items()) if number in self.recorded]

    @property
    def on(self) -> bool:
        """Whether the present window is recorded."""
        return self.number in self.recorded

    def keep(self, kind: str, about: Any = None) -> SeenEvent:
        """Keep an event of a recorded window."""
        made = SeenEvent(kind, user_location(), about)
        if self.open and (self.on or (kind == PASS and self.number - 1 in self.recorded)):
            own = self.seen.setdefault(self.number, [])
            made.kept = self.on or not own
            own += [made] * made.kept
        return made

    def begins(self, held: int = 0) -> SeenEvent:
        """A backward pass begins: the first of a window where a step came before. `held`: gradients that are there."""
        if self.stepped:
            self._close()
        if not self.open:
            self._acts = [(LEFT, NOWHERE)] * held
        self.open = True
        made = self.keep(PASS)
        self._acts.append((PASS, made.location))
        return made

    def event(self, kind: str, about: Any = None) -> None:
        """Something that happens at a line of the user's; before the first backward pass it belongs to no window."""
        if self.open:
            self._acts.append((kind, self.keep(kind, about).location))
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
            count, first = self._kinds.get(kind, (0, self.number))
            self._kinds[kind] = (count + 1, first)
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
        for kind, (count, first) in self._kinds.items():
            final = (count, first) == (1, last) and kind[0] in bodies
            if kind not in self._recorded and not final and self._recorded:
                yield NotJudged(count, first, self._difference(kind))

    def _difference(self, kind: tuple[Counted, Counted]) -> str:
        """In what a window differs from the recorded ones: the backward passes first, then what has more or less."""
        own, *others = (totals(one) for one in (kind, *self._recorded))
        known = sorted({passes(one) for one in others})
        if passes(own) not in known:
            right = " or ".join(map(str, known))
            return f"has {passes(own)} backward passes where the recorded ones have {right}"
        every = set[Act]().union(*others)
        for act in (act for act in own if act not in every):
            return f"has {own[act]} x {shown_act(act)}, which no recorded one has"
        for act in sorted(every.difference(own), key=str):
            return f"has no {shown_act(act)}, which a recorded one has"
        return "has the events of the recorded ones in another number or order"


def shown_act(act: Act) -> str:
    """An event with its line."""
    what, location = act
    return what + (f" at {Path(location.file).name}:{location.line}" if location != NOWHERE else "")


def counted(acts: Sequence[Act]) -> Counted:
    """Events in a row that are alike, as one with its number."""
    return tuple((act, len(list(same))) for act, same in groupby(acts))


def totals(kind: tuple[Counted, Counted]) -> Counter[Act]:
    """How often each event is in a window."""
    return sum((Counter({act: times}) for act, times in kind[0] + kind[1]), Counter[Act]())


def passes(events: Counter[Act]) -> int:
    """The backward passes among some events."""
    return sum(times for (kind, _), times in events.items() if kind == PASS)
