"""The windows of a watched run by their events, and the rules that a look at these events shows to be broken.

A turn begins with the first backward pass after a step, and goes on until the next such pass. Hooks report what
happens meanwhile: zeroes, clips, unscaling, steps, schedules. They say nothing of what a gradient is made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from gradproof.shadow.locations import Location
from gradproof.shadow.record.events import Event

NARROW = frozenset({"float16", "bfloat16", "complex32"})
PASS = ("accumulate", "gradients")
STALE = "accumulated onto a gradient that was already applied"
LOST = "zeroed before the step: gradients of this window are lost"


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule that an event breaks: the event, the parameters concerned, and after how many backward passes."""

    obligation: str
    why: str
    event: Event
    params: frozenset[str]
    micro: int
    location: Location


@dataclass(slots=True, eq=False)
class Turn:
    """The events of one window. `passes` are numbers of backward passes; `steps` the optimizer steps."""

    events: list[Event] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)
    steps: list[Event] = field(default_factory=list)

    def place(self, event: Event) -> int:
        """The place of an event."""
        return next(i for i, one in enumerate(self.events) if one is event)

    def of(self, *kinds: str) -> list[Event]:
        """The events of some kinds."""
        return [event for event in self.events if event.kind in kinds]

    def before_step(self) -> list[Event]:
        """The events up to the first step."""
        return self.events[: self.place(self.steps[0])] if self.steps else self.events


def of(event: Event) -> frozenset[str]:
    """The parameters that an event concerns."""
    return frozenset(event.detail.get("params", ()))


def union(events: Iterable[Event]) -> frozenset[str]:
    """The parameters that some events concern."""
    return frozenset(name for event in events for name in of(event))


def stretches(items: Sequence[Event]) -> list[list[Event]]:
    """The events of each time in which hooks were at work."""
    found: list[list[Event]] = [[]]
    for event in items:
        if event.kind == "on":
            found.append([])
        else:
            found[-1].append(event)
    return [part for part in found if part]


def turns(events: Sequence[Event]) -> list[Turn]:
    """The windows of one stretch; the last of them may have no step. A step that wraps another one's is none."""
    outer = {event.detail.get("outer") for event in events if event.kind == "step"} - {None}
    found: list[Turn] = []
    for event in events:
        if event.kind in PASS and (not found or found[-1].steps):
            found.append(Turn())
        if not found:
            continue
        turn = found[-1]
        turn.events.append(event)
        if event.kind in PASS and event.detail["number"] not in turn.passes:
            turn.passes.append(event.detail["number"])
        elif event.kind == "step" and event.detail.get("optimizer") not in outer:
            turn.steps.append(event)
    return found


def broken(found: Sequence[Turn], known: frozenset[str]) -> Iterator[Broken]:
    """The rules that the events of a stretch break, but for those that need the length of a window."""
    yield from _stale(found, known)
    for turn in found:
        yield from _lost(turn, known)
        yield from _twice(turn)
        yield from _clipped(turn)
        yield from _schedules(turn)
        yield from _narrow(turn, known)
    yield from _rates(found)
    yield from _unsummed(found, known)


def _made(obligation: str, why: str, event: Event, params: frozenset[str], turn: Turn) -> Broken:
    micro = len({one.detail["number"] for one in turn.events[: turn.place(event)] if one.kind in PASS})
    return Broken(obligation, why, event, params, micro, event.location)


def _stale(found: Sequence[Turn], known: frozenset[str]) -> Iterator[Broken]:
    """A gradient arrives where one that was applied still is."""
    due: set[str] = set()
    for turn in found:
        for event in turn.events:
            if event.kind == "accumulate" and of(event) & due & known:
                yield _made("GA-INV-002", STALE, event, of(event) & due & known, turn)
                return
            if event.kind in ("zero", "assign"):
                due -= of(event)
            elif event in turn.steps:
                due |= frozenset(event.detail.get("held", ()))


def _lost(turn: Turn, known: frozenset[str]) -> Iterator[Broken]:
    """Gradients are zeroed before any step, and nothing is put into their place."""
    held, events = set[str](), turn.before_step() if turn.steps else []
    for at, event in enumerate(events):
        if event.kind == "accumulate":
            held |= of(event) & known
        elif event.kind == "zero" and of(event) & held:
            if not any(of(later) & known for later in events[at:] if later.kind in ("assign", "touch")):
                same = next(groupby(events[at:], key=lambda one: (one.kind, one.location)))[1]
                yield _made("GA-INV-002", LOST, event, frozenset(held).intersection(union(same)), turn)
            return


def _twice(turn: Turn) -> Iterator[Broken]:
    """One optimizer steps again, with gradients that it applied before."""
    held: dict[int, tuple[Event, set[str]]] = {}
    for event in turn.events:
        if event.kind == "zero":
            for _, names in held.values():
                names -= of(event)
        if event not in turn.steps:
            continue
        before, names = held.get(event.detail["optimizer"], (event, set()))
        other = before.detail.get("call") != event.detail.get("call")
        if other and names & frozenset(event.detail.get("held", ())):
            at = before if event.location.via and not before.location.via else event
            yield _made("GA-INV-003", "stepped twice on one window", at, of(event), turn)
            return
        held[event.detail["optimizer"]] = (event, set(event.detail.get("held", ())))


def _clipped(turn: Turn) -> Iterator[Broken]:
    """A clip, or an unscaling, that is followed by another backward pass of the window, or a clip by an unscaling."""
    events = turn.before_step()
    for at, event in enumerate(events):
        if event.kind not in ("clip", "unscale") or _measures(event):
            continue
        for later in events[at + 1 :]:
            if not of(later) & of(event) or _measures(later):
                continue
            if later.kind == "zero":
                break
            if later.kind in PASS and event.kind == "unscale":
                why = "unscaled before the window was complete: the sum mixes two scales"
                yield _made("GA-EQ-001", why, event, of(event), turn)
                return
            words = {
                "accumulate": "clipped before the last micro-batch", "gradients": "clipped before the last micro-batch",
                "unscale": "clipped before unscale: the norm was measured times the loss scale",
                "sync": "clipped before the ranks were summed", "clip": "clipped twice",
            }.get(later.kind) if event.kind == "clip" else None  # fmt: skip
            if words is not None:
                yield _made("GA-INV-005", words, later if later.kind == "clip" else event, of(event), turn)
                return
    for event in turn.events[len(events) :]:
        if event.kind == "zero":
            return
        if event.kind == "clip" and not _measures(event):
            yield _made("GA-INV-005", "clipped after the step", event, of(event), turn)
            return


def _measures(clip: Event) -> bool:
    """Whether a clip is one at infinity, which measures a norm and scales nothing."""
    limit = clip.detail.get("limit")
    return clip.kind == "clip" and limit is not None and float(limit) == float("inf")


def _schedules(turn: Turn) -> Iterator[Broken]:
    """A schedule advances twice between two steps."""
    seen: dict[Any, Event] = {}
    for event in turn.of("schedule"):
        before = seen.get(event.detail["scheduler"])
        again = before is not None and "accelerate" in event.location.via and before.location == event.location
        if before is not None and not again:  # Accelerate advances a schedule once a rank and step
            yield _made("GA-INV-003", "the schedule advanced without a step of its own", event, frozenset(), turn)
            return
        if not event.detail.get("placed"):
            seen[event.detail["scheduler"]] = event


def _narrow(turn: Turn, known: frozenset[str]) -> Iterator[Broken]:
    """Gradients are summed in fewer bits than fp32."""
    held: dict[str, int] = {}
    for event in turn.before_step():
        if event.kind == "zero":
            held.update(dict.fromkeys(of(event), 0))
        for name in sorted(of(event) & known) if event.kind == "accumulate" else ():
            held[name] = held.get(name, 0) + 1
            dtype = event.detail.get("dtypes", {}).get(name, "")
            if held[name] == 2 and dtype in NARROW:
                yield _made("GA-INV-004", f"gradients are accumulated in {dtype}", event, frozenset({name}), turn)
                return


def _rates(found: Sequence[Turn]) -> Iterator[Broken]:
    """A learning rate that is set by hand more than once a window, and there between two of its backward passes.

    Set once a window, before its first backward pass or before its step, it is a schedule like any other.
    """
    why = "the learning rate was changed by hand more than once in a window: before this line, between micro-batches"
    before: list[Event] = []
    for turn in found:
        first = turn.place(turn.of(*PASS)[0])
        changes = before + [event for event in turn.before_step()[first:] if event.kind == "rate"]
        inner = [event for event in changes if event.detail["at"] == "backward" and event not in before]
        if inner and len(changes) > 1:
            yield _made("GA-INV-003", why, inner[0], of(turn.steps[0]) if turn.steps else frozenset(), turn)
            return
        before = [event for event in turn.of("rate") if event not in turn.before_step()]


def _unsummed(found: Sequence[Turn], known: frozenset[str]) -> Iterator[Broken]:
    """With several ranks, each gradient that a step applies was summed after its last arrival.

    Judged are the weights that a DistributedDataParallel answers for. Who sums others need not be seen.
    """
    due: set[str] = set()
    for turn in found:
        for event in turn.events:
            if event.kind == "accumulate":
                due |= known & of(event) & set(event.detail.get("shared", ()))
            elif event.kind == "zero":
                due -= of(event)
            elif event.kind == "sync":
                flat = not of(event) and int(event.detail.get("elements", 1)) > 1
                due -= set(due) if flat else of(event)
            elif event in turn.steps and due:
                why = "stepped on a gradient that was not summed over the ranks after the last micro-batch"
                yield _made("GA-SYNC-001", why, event, frozenset(due), turn)
                return
