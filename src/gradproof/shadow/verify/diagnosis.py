"""Which line of the user's file makes a gradient wrong, how wrong it is, and the help.

Two places decide the factor of a micro-batch: the root of its backward pass, and whatever writes the buffer between
the backward passes and the step. The second is blamed where there is one, else the operator that made the root.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import numpy as np

from gradproof.core.timeline import Tick, Timeline, as_json, shortened
from gradproof.shadow.protocol.event_ops import Act
from gradproof.shadow.protocol.events import acts_of
from gradproof.shadow.protocol.window import Broken
from gradproof.shadow.tape import NOWHERE, USER, Array, Const, Entry, Event, Item, Location, Ref, Tape, held_in, owner
from gradproof.shadow.verify.compare import Quantity

KNOWN = frozenset({"clip", "unscale", "zero", "step", "stepped", "scale", "accumulate", "backward", "sync"})
LOOKED_THROUGH = frozenset({"clone", "copy_", "_to_copy", "stack", "detach", "zero_", "fill_"})

EXACT = 2.0**-18
"""A factor is shown as a fraction where it explains every element within this: 64 roundings of fp32."""

DEEPEST = 64
"""Operators between a number and the line that is blamed for it, at most."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How a gradient relates to the right one: `factor` is <g, right> / <right, right>; `apart` what is left over."""

    factor: float
    apart: float

    @property
    def proportional(self) -> bool:
        """Whether the factor explains the whole difference, to about 1 %."""
        return self.apart <= 1e-2 * max(1.0, abs(self.factor))

    def __str__(self) -> str:
        near = Fraction(self.factor).limit_denominator(64)
        room = EXACT * max(1.0, abs(self.factor))
        exact = self.apart <= room and abs(float(near) - self.factor) <= room
        return f"{near if exact else f'about {self.factor:.4g}'} times the full batch's"


def scale(ours: Array, full: Array) -> Scale | None:
    """Relation of two gradients, as flat arrays; None where the full batch's is zero or not finite."""
    a, b = np.ravel(ours), np.ravel(full)
    square = float(b @ b)
    if not np.isfinite(square) or square == 0.0 or not np.all(np.isfinite(a)):
        return None
    factor = float(a @ b) / square
    return Scale(factor, float(np.linalg.norm(a - factor * b)) / square**0.5)


def windows(tape: Tape) -> list[list[Item]]:
    """The items of a tape cut after each step that ends a window (later steps of the same window stay with it)."""
    found: list[list[Item]] = [[]]
    stepped = False
    for item in tape.items:
        if isinstance(item, Event) and item.kind == "backward" and stepped:
            found.append([])
            stepped = False
        found[-1].append(item)
        stepped = stepped or (isinstance(item, Event) and item.kind == "step")
    return found


def place_of_gradient(tape: Tape, window: int, name: str = "") -> Location:
    """The line to blame for a wrong gradient in a window (0-based): what made the gradient that the step was handed.

    Where autograd made it, a write to the buffer or a hook is blamed, else the root of the last backward pass.
    """
    cut = windows(tape)
    items = cut[min(window, len(cut) - 1)]
    made = _made(tape, items, name)
    if made is not None:
        return made
    writes = list(_writes(items, _clips(tape)))
    if writes:
        return writes[-1].place
    hooks = list(_hooks(items))
    if hooks:
        return hooks[-1]
    roots = [item for item in items if isinstance(item, Event) and item.kind == "backward"]
    return place_of_root(tape, roots[-1]) if roots else NOWHERE


def _writes(items: list[Item], clips: set[Location]) -> Iterator[Entry]:
    """Operators that write a gradient's storage after the first backward pass, outside of all that events explain."""
    grads: set[int] = set()
    explained = {item.place for item in items if isinstance(item, Event) and item.kind in KNOWN - {"backward"}} | clips
    last = max(
        (i for i, item in enumerate(items) if isinstance(item, Event) and item.kind == "step"), default=len(items)
    )
    for item in items[:last]:
        if isinstance(item, Event) and item.kind == "accumulate":
            grads = {
                ref.storage for name, ref in item.refs.items() if name.startswith("grad/") and isinstance(ref, Ref)
            }
        elif (
            isinstance(item, Entry)
            and not item.backward
            and item.place not in explained
            and any(ref.storage in grads for ref in item.writes)
        ):
            yield item


def place_of_weights(tape: Tape, window: int, name: str) -> Location | None:
    """The line that last wrote a weight, outside of any optimizer, between the step before a window and its own."""
    place, seen, storage, inside = None, 0, -1, False
    for item in tape.items:
        if isinstance(item, Event):
            ref = item.refs.get(f"param/{name}")
            storage = ref.storage if isinstance(ref, Ref) else storage
            inside = item.kind == "step" or (inside and item.kind != "stepped")
            if item.kind == "step":
                seen += 1
                if seen > window:
                    return place
                place = None
        elif isinstance(item, Entry) and not inside and not item.backward:
            place = item.place if any(ref.storage == storage for ref in item.writes) else place
    return place


def _made(tape: Tape, items: list[Item], name: str) -> Location | None:
    """The line of the user's own operator that made the gradient, if autograd did not."""
    explained = {item.place for item in items if isinstance(item, Event) and item.kind in KNOWN} | _clips(tape)
    step = next((i for i in items if isinstance(i, Event) and i.kind == "step" and f"grad/{name}" in i.refs), None)
    ref = None if step is None else step.refs[f"grad/{name}"]
    before: Item | None = step
    while isinstance(ref, Ref) and before is not None:
        entry = producer(tape, ref, before)
        if entry is None or entry.backward:
            return None
        operator, added = entry.op.split(".")[1], list(held_in(entry.args[1:], Ref))
        before = entry
        if operator == "add_" and added and "alpha" not in entry.kwargs:
            ref = added[0]
        elif entry.place not in explained and operator not in LOOKED_THROUGH:
            return entry.place
    return None


def _clips(tape: Tape) -> set[Location]:
    """Lines of clips that are written by hand."""
    return {act.place for act in acts_of(tape).acts if act.kind == "clip"}


def _hooks(items: list[Item]) -> Iterator[Location]:
    """Lines of the user's that ran inside a backward pass and in no forward pass: hooks. Recomputation is none."""
    forward = {str(item.place) for item in items if isinstance(item, Entry) and not item.backward}
    for item in items:
        if isinstance(item, Entry) and item.backward and item.place.via and item.place.via not in forward:
            file, _, line = item.place.via.rpartition(":")
            if line.isdigit() and owner(file) == USER:
                yield Location(file, int(line))


def producer(tape: Tape, ref: Ref, before: Item) -> Entry | None:
    """The last operator before an item that wrote a tensor's storage."""
    found: Entry | None = None
    for item in tape.items:
        if item is before:
            return found
        if isinstance(item, Entry) and any(w.storage == ref.storage for w in item.writes):
            found = item
    return found


def place_of_root(tape: Tape, backward: Event) -> Location:
    """The line that made the root of a backward pass; a loss scale that was multiplied in later is looked through."""
    root = next((ref for ref in backward.refs.values() if isinstance(ref, Ref)), None)
    entry = producer(tape, root, backward) if root is not None else None
    if entry is None:
        return backward.place
    factors = [a for a in entry.args if isinstance(a, Const)]
    tracked = list(held_in(entry.args, Ref))
    if entry.op.startswith("aten.mul") and factors and len(tracked) == 1:
        inner = producer(tape, tracked[0], entry)
        return inner.place if inner is not None else entry.place
    return entry.place


def place_of_loss(tape: Tape, name: str) -> Location:
    """The line that last computed a returned loss: copies of it are looked through."""
    event = next(tape.events("loss"))
    ref: Ref | Const | None = event.refs.get(name)
    before: Item = event
    found = event.place
    while isinstance(ref, Ref):
        entry = producer(tape, ref, before)
        if entry is None:
            break
        found = entry.place
        if entry.op.split(".")[1].startswith("allreduce"):
            before = entry
            continue
        if entry.op.split(".")[1] not in LOOKED_THROUGH:
            break
        sources = [r for r in held_in(entry.args, Ref) if r.storage != ref.storage]
        ref, before = (sources[0] if sources else None), entry
    return found


def place_of_number(tape: Tape) -> Location | None:
    """The line at which Python read the last number; where a framework did, the user's function that it was made in."""
    event = next(reversed(list(tape.events("item"))), None)
    if event is None or not event.place.via:
        return None if event is None else event.place
    ref, before = next((r for r in event.refs.values() if isinstance(r, Ref)), None), cast("Item", event)
    for _ in range(DEEPEST):
        entry = None if ref is None else producer(tape, ref, before)
        if ref is None or entry is None:
            break
        if (entry.place.file, entry.place.function) != (event.place.file, event.place.function):
            return entry.place
        ref, before = next((r for r in held_in(entry.args, Ref) if r.storage != ref.storage), ref), entry
    return event.place


def place_of_data(tape: Tape) -> Location:
    """The line where data first meet a parameter; the first operator that reads data where they never meet."""
    data = {leaf.ref.storage for leaf in tape.leaves() if leaf.source.kind == "data"}
    weights = {leaf.ref.storage for leaf in tape.leaves() if leaf.source.kind == "param"}
    first = NOWHERE
    for entry in tape.entries():
        read = {ref.storage for ref in held_in((entry.args, entry.kwargs), Ref)}
        indexed = any(isinstance(a, Const) and a.value.dtype.kind in "iu" and a.value.ndim for a in entry.args)
        if read & data or indexed:
            if read & weights:
                return entry.place
            first = entry.place if first is NOWHERE else first
            data |= {ref.storage for ref in entry.writes}
    return first


def help_for(found: Scale | None, n: int) -> str:
    """What to change, for a gradient that is a multiple of the right one."""
    if found is None or not found.proportional:
        return "weigh each micro-batch by its share of the window: its samples or valid tokens over the window's"
    if abs(found.factor - n) < 0.01 * n:
        return f"divide the loss of each micro-batch by the {n} micro-batches of its window, once"
    if abs(found.factor * n - 1) < 0.01:
        return "the loss or the gradient is divided by the window's length twice: divide once"
    if found.factor < 1:
        return "the window is divided by more than its own length: divide by the micro-batches that it has"
    return "the factors of the window's micro-batches must sum to one"


# -- A refuted step shown as the events of its run: what happened to one gradient, where, and which event is to blame.
WORDS = {"arrive": "backward", "assign": "assign .grad", "weights": "weights change", "rate": "lr changes"}
SILENT = frozenset({"touch", "end"})
NOTHING = "none"
BLAMED, EACH = "this line is blamed", "each time that it runs in the window"


@dataclass(frozen=True, slots=True)
class TraceRow:
    """A tick, the item of the tape that it tells of, and its line."""

    index: int
    tick: Tick
    place: Location = NOWHERE


@dataclass(slots=True)
class HeldGradient:
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


def of_violation(tape: Tape, broken: Broken) -> dict[str, Any] | None:
    """The run up to a broken rule of the window protocol, as JSON of a Timeline; None where it has no event."""
    stated = _caused(list(_ticks(tape, broken.params[0] if broken.params else "")), broken)
    harm = f"{broken.obligation} is broken"
    stated = [replace(row, tick=replace(row.tick, harm=harm)) if row.tick.refused else row for row in stated]
    return _line(f"{broken.obligation}, {broken.why}", stated)


def last_write(tape: Tape, place: Location, window: int) -> int:
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
    place: Location | None
    cause: Broken | None = None
    quantity: Quantity | None = None
    everywhere: bool = False

    @property
    def line(self) -> str:
        """The blamed line; empty where there is none, or where a broken rule is to blame."""
        return _shown(self.place) if self.place is not None and self.cause is None else ""


def of_wrong(tape: Tape, wrong: Wrong) -> dict[str, Any] | None:
    """The run up to the step at which a number differs, as JSON of a Timeline; None where it has no event.

    Without a number it is the whole run.
    """
    quantity = wrong.quantity
    named = quantity is not None and quantity.group == "grad" and not (wrong.cause and wrong.cause.event == "weights")
    stated = list(_ticks(tape, quantity.name if quantity and named else ""))
    if wrong.cause is not None:
        stated = _caused(stated, wrong.cause)
    if not stated:
        return None
    if quantity is None:
        felt = len(stated) - 1
    else:
        inside = _window(tape, quantity.window)
        if wrong.line:
            stated = _blamed(tape, stated, inside, wrong)
        steps = (i for i, row in enumerate(stated) if row.index in inside and row.tick.event == "step")
        felt = len(stated) - 1 if quantity.event == "end" else next(steps, len(stated) - 1)
    doubt = bool(quantity and wrong.line) and not any(row.tick.refused for row in stated)
    harm = f"{wrong.why}; {wrong.line} is blamed, and no one event of it" if doubt else wrong.why
    stated[felt] = replace(stated[felt], tick=replace(stated[felt].tick, harm=harm))
    return _line(f"{wrong.obligation}, {quantity or 'the whole run'}", stated)


def _ticks(tape: Tape, name: str) -> Iterator[TraceRow]:
    """The acts on one parameter, or on any where it has none of its own; what one line does at once is one tick."""
    acts = [a for a in acts_of(tape).acts if a.kind not in SILENT]
    mine = [a for a in acts if name in a.params or not a.params]
    if any(a.kind == "arrive" for a in mine):
        acts = mine
    held, last = HeldGradient(), None
    for act in acts:
        alike = (act.kind, act.place, act.micro)
        if alike == last and act.kind != "arrive":
            continue
        last = alike
        note = _shown(act.place) + (", skipped" if act.detail.get("skipped") else "")
        yield TraceRow(act.index, Tick(WORDS.get(act.kind, act.kind), held.after(act), note), act.place)


def _window(tape: Tape, number: int) -> range:
    """The items of a window."""
    cut = windows(tape)
    at = min(number, len(cut) - 1)
    first = sum(len(items) for items in cut[:at])
    return range(first, first + len(cut[at]))


def _blamed(tape: Tape, stated: list[TraceRow], inside: range, wrong: Wrong) -> list[TraceRow]:
    """The ticks with the blamed event among them, where it can be known which one it is."""
    assert wrong.place is not None
    here = [i for i, row in enumerate(stated) if row.index in inside and str(row.place) == str(wrong.place)]
    if not here:
        found = list(_written_at(tape, inside, wrong.place))
        stated = _merged(stated, found, wrong.line)
        here = [i for i, row in enumerate(stated) if any(row.index == index for index, _ in found)]
    if len(here) == 1:
        stated[here[0]] = _refuse(stated[here[0]], BLAMED)
    elif here and wrong.everywhere:
        stated[here[0]] = _refuse(stated[here[0]], f"{BLAMED}, {EACH}")
    return stated


def _written_at(tape: Tape, inside: range, place: Location) -> Iterator[tuple[int, str]]:
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


def _merged(stated: Sequence[TraceRow], found: Sequence[tuple[int, str]], note: str) -> list[TraceRow]:
    """Further ticks at their places; none of them changes the state."""
    out = list(stated)
    for index, word in found:
        at = sum(row.index < index for row in out)
        state = out[at - 1].tick.after if at else NOTHING
        out.insert(at, TraceRow(index, Tick(word, state, note)))
    return out


def _caused(stated: list[TraceRow], cause: Broken) -> list[TraceRow]:
    """The ticks with the event that broke a rule marked, at its line."""
    if not any(row.index == cause.index for row in stated):
        stated = _merged(stated, [(cause.index, WORDS.get(cause.event, cause.event or "write"))], _shown(cause.place))
    place = _shown(cause.place)
    return [
        replace(row, tick=replace(row.tick, refused=cause.why, note=place or row.tick.note))
        if row.index == cause.index
        else row
        for row in stated
    ]


def _refuse(row: TraceRow, why: str) -> TraceRow:
    return replace(row, tick=replace(row.tick, refused=why))


def _shown(place: Location) -> str:
    return "" if place == NOWHERE or not place.file else f"{Path(place.file).name}:{place.line}"


def _line(title: str, stated: Sequence[TraceRow]) -> dict[str, Any] | None:
    ticks = shortened([row.tick for row in stated]) if stated else ()
    return as_json(Timeline(title, NOTHING, ticks)) if ticks else None
