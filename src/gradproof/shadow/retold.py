"""A refuted step told as the events of its run: what happened to one gradient, where, and which event is to blame.

The events are those of the tape, with the line of each. An offence against the window protocol is marked at its own
event. A number that differs is marked where its window is stepped; the event at the line that the verifier blames is
marked beside it where there is no doubt which one it is: the only one at that line in the window, or the first of
several that are all wrong by one factor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gradproof.shadow.blame import place_of_root, windows
from gradproof.shadow.compare import Quantity
from gradproof.shadow.flow import acts_of
from gradproof.shadow.flow_ops import Act
from gradproof.shadow.tape import NOWHERE, Entry, Event, Item, Place, Tape
from gradproof.shadow.windows import Broken
from gradproof.timeline import Tick, Timeline, as_json, shortened

WORDS = {"arrive": "backward", "assign": "assign .grad", "weights": "weights change", "rate": "lr changes"}
SILENT = frozenset({"touch", "end"})
NOTHING = "none"
BLAMED, EACH = "this line is blamed", "each time that it runs in the window"


@dataclass(frozen=True, slots=True)
class Told:
    """A tick, the item of the tape that it tells of, and its line."""

    index: int
    tick: Tick
    place: Place = NOWHERE


@dataclass(slots=True)
class Held:
    """How many micro-batches are in a gradient, and how many of them an optimizer was handed before."""

    old: int = 0
    new: int = 0
    clipped: bool = False

    def after(self, act: Act) -> str:
        """The state after an act, in words."""
        if act.kind == "arrive":
            self.new, self.clipped = self.new + 1, False
        elif act.kind == "clip":
            self.clipped = True
        elif act.kind == "step":
            self.old, self.new, self.clipped = self.old + self.new, 0, False
        elif act.kind == "zero":
            self.old = self.new = 0
            self.clipped = False
        return str(self)

    def __str__(self) -> str:
        parts = [f"{self.old} applied"] * bool(self.old) + [str(self.new)] * bool(self.new)
        return (" + ".join(parts) or NOTHING) + (" clipped" if self.clipped else "")


def of_offence(tape: Tape, broken: Broken) -> dict[str, Any] | None:
    """The run up to a broken rule of the window protocol, as JSON of a Timeline; None where it has no event."""
    told = _caused(list(_ticks(tape, broken.params[0] if broken.params else "")), broken)
    harm = f"{broken.obligation} is broken"
    told = [replace(row, tick=replace(row.tick, harm=harm)) if row.tick.refused else row for row in told]
    return _line(f"{broken.obligation}, {broken.why}", told)


def last_write(tape: Tape, place: Place, window: int) -> int:
    """The last item that a line made before the step of a window; the step where there is none."""
    steps = [i for i, item in enumerate(tape.items) if _is(item, "step")]
    step = steps[min(window, len(steps) - 1)] if steps else len(tape.items)
    made = (i for i, item in enumerate(tape.items[:step]) if isinstance(item, Entry) and item.place == place)
    return max(made, default=step)


@dataclass(frozen=True, slots=True)
class Wrong:
    """What is refuted: the obligation, the words, the blamed line, the rule that was broken before it, the number.

    `everywhere`: all gradients of the window are one multiple of the right ones.
    """

    obligation: str
    why: str
    place: Place | None
    cause: Broken | None = None
    quantity: Quantity | None = None
    everywhere: bool = False

    @property
    def line(self) -> str:
        """The blamed line; empty where there is none, or where a broken rule is to blame."""
        return _shown(self.place) if self.place is not None and self.cause is None else ""


def of_wrong(tape: Tape, wrong: Wrong, weights: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any] | None:
    """The run up to the step at which a number differs, as JSON of a Timeline; None where it has no event.

    `weights` are the rows of `Verification.weights`. Without a number it is the whole run.
    """
    quantity = wrong.quantity
    named = quantity is not None and quantity.group == "grad" and not (wrong.cause and wrong.cause.event == "weights")
    told = list(_ticks(tape, quantity.name if quantity and named else ""))
    if wrong.cause is not None:
        told = _caused(told, wrong.cause)
    if not told:
        return None
    if quantity is None:
        felt = len(told) - 1
    else:
        inside = _window(tape, quantity.window)
        if wrong.line:
            told = _blamed(tape, told, inside, wrong, _apart(weights, quantity))
        steps = (i for i, row in enumerate(told) if row.index in inside and row.tick.event == "step")
        felt = len(told) - 1 if quantity.event == "end" else next(steps, len(told) - 1)
    doubt = bool(quantity and wrong.line) and not any(row.tick.refused for row in told)
    harm = f"{wrong.why}; {wrong.line} is blamed, and no one event of it" if doubt else wrong.why
    told[felt] = replace(told[felt], tick=replace(told[felt].tick, harm=harm))
    return _line(f"{wrong.obligation}, {quantity or 'the whole run'}", told)


def _apart(weights: Sequence[Mapping[str, Any]], quantity: Quantity) -> list[str]:
    """What is wrong with each micro-batch of a window, in words: empty where nothing; no list where it is not known."""
    rows = [w for w in weights if (w["window"], w["rank"]) == (quantity.window, quantity.rank)]
    if quantity.group not in ("grad", "loss") or any(w["weight"] == "unknown" for w in rows):
        return []
    found: dict[int, str] = {}
    for w in rows:
        words = "" if w["ok"] else f"its tokens weigh {w['weight']}, and {w['expected']} is right"
        found[w["micro"]] = found.get(w["micro"]) or words
    return [found[k] for k in sorted(found)] if sorted(found) == list(range(len(found))) else []


def _ticks(tape: Tape, name: str) -> Iterator[Told]:
    """The acts on one parameter, or on any where it has none of its own; what one line does at once is one tick."""
    acts = [a for a in acts_of(tape).acts if a.kind not in SILENT]
    mine = [a for a in acts if name in a.params or not a.params]
    if any(a.kind == "arrive" for a in mine):
        acts = mine
    held, last = Held(), None
    for act in acts:
        alike = (act.kind, act.place, act.micro)
        if alike == last and act.kind != "arrive":
            continue
        last = alike
        note = _shown(act.place) + (", skipped" if act.detail.get("skipped") else "")
        yield Told(act.index, Tick(WORDS.get(act.kind, act.kind), held.after(act), note), act.place)


def _window(tape: Tape, number: int) -> range:
    """The items of a window."""
    cut = windows(tape)
    at = min(number, len(cut) - 1)
    first = sum(len(items) for items in cut[:at])
    return range(first, first + len(cut[at]))


def _blamed(tape: Tape, told: list[Told], inside: range, wrong: Wrong, apart: Sequence[str]) -> list[Told]:
    """The ticks with the blamed event among them, where it can be told which one it is."""
    assert wrong.place is not None
    here = [i for i, row in enumerate(told) if row.index in inside and str(row.place) == str(wrong.place)]
    if not here:
        found = list(_made(tape, inside, wrong.place))
        told = _merged(told, found, wrong.line)
        here = [i for i, row in enumerate(told) if any(row.index == index for index, _ in found)]
    first = next((i for i, words in enumerate(apart) if words), None)
    if len(here) == 1:
        told[here[0]] = _refuse(told[here[0]], BLAMED)
    elif len(here) == len(apart) and first is not None:
        told[here[first]] = _refuse(told[here[first]], f"{BLAMED}: {apart[first]}")
    elif here and wrong.everywhere:
        told[here[0]] = _refuse(told[here[0]], f"{BLAMED}, {EACH}")
    return told


def _made(tape: Tape, inside: range, place: Place) -> Iterator[tuple[int, str]]:
    """Items of a window that a line made: the roots of its backward passes, else its last write or hook."""
    items = tape.items[inside.start : inside.stop]
    passes = [(inside.start + i, item) for i, item in enumerate(items) if _is(item, "backward")]
    roots = [i for i, item in passes if isinstance(item, Event) and place_of_root(tape, item) == place]
    if roots:
        yield from ((i, "loss") for i in roots)
        return
    own = [
        (inside.start + i, item.op.split(".")[1])
        for i, item in enumerate(items)
        if isinstance(item, Entry) and (str(item.place) == str(place) or item.place.via == str(place))
    ]
    yield from own[-1:]


def _is(item: Item, kind: str) -> bool:
    return isinstance(item, Event) and item.kind == kind


def _merged(told: Sequence[Told], found: Sequence[tuple[int, str]], note: str) -> list[Told]:
    """Further ticks at their places; none of them changes the state."""
    out = list(told)
    for index, word in found:
        at = sum(row.index < index for row in out)
        state = out[at - 1].tick.after if at else NOTHING
        out.insert(at, Told(index, Tick(word, state, note)))
    return out


def _caused(told: list[Told], cause: Broken) -> list[Told]:
    """The ticks with the event that broke a rule marked, at its line."""
    if not any(row.index == cause.index for row in told):
        told = _merged(told, [(cause.index, WORDS.get(cause.event, cause.event or "write"))], _shown(cause.place))
    place = _shown(cause.place)
    return [
        replace(row, tick=replace(row.tick, refused=cause.why, note=place or row.tick.note))
        if row.index == cause.index
        else row
        for row in told
    ]


def _refuse(row: Told, why: str) -> Told:
    return replace(row, tick=replace(row.tick, refused=why))


def _shown(place: Place) -> str:
    return "" if place == NOWHERE or not place.file else f"{Path(place.file).name}:{place.line}"


def _line(title: str, told: Sequence[Told]) -> dict[str, Any] | None:
    ticks = shortened([row.tick for row in told]) if told else ()
    return as_json(Timeline(title, NOTHING, ticks)) if ticks else None
