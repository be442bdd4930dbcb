"""The second judge: plain numbers. The N-run and a clean full batch are compared as machine numbers, nothing else.

*Clean* means that the gradients are zeroed before each window of the full batch begins. Compared are the gradients that
each optimizer step is handed, the weights and the optimizer's state after it, running averages, the buffers of the
modules, and the losses that the function returns; where it returns none, the numbers that it prints. This is done

| at | in |
|---|---|
| the recorded values | the function's own dtype |
| the function's own values | float64: `run.dtype` and torch's default dtype |
| leaves scaled by `SCALES` | float64, or the own dtype where the function does not run in float64 |

A difference counts above `ROUNDINGS` units of roundoff of the narrowest dtype on the tape, relative to the largest
element, and above `SLACK` times the difference that leaves a few units of roundoff away make. Where the proof needed
constants read as rationals, the unit is that of float32. At other scales nothing counts after a gradient that is lost
in rounding. This judge proves nothing. It only keeps HOLDS from status where the numbers differ.

Whether the recorded numbers bear out what events and streams of data only suggest. A zero before the step, a step in
the middle of a window, a weight that moved inside of it, or data that the other run did not see are wrong in most
loops and right in some: an accumulator of the user's own, two epochs, SAM, a batch made ahead. Where every gradient,
weight and state is the full batch's, the suspicion is neither confirmed nor removed: both runs may share the mistake.
The answer is undecided then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np
import torch

from gradproof.core.outcome import Outcome
from gradproof.shadow.protocol.event_ops import AVERAGED, CHANGED, FOLLOWED
from gradproof.shadow.protocol.window import Broken, table
from gradproof.shadow.record.run import Recording, default_dtype
from gradproof.shadow.result import RECORDED, UP_TO_CONSTANTS, Result, Verification
from gradproof.shadow.tape import NOWHERE, Array, Event, Key, Location, Streams, Tape
from gradproof.shadow.verify.compare import ReadWindow, moved, unmatched
from gradproof.shadow.verify.obligations import foreign, granted, numbers_of, returned_only, returned_pairs
from gradproof.shadow.verify.recordings import (
    UNIT,
    StepRecordings,
    Values,
    finite,
    narrowest,
    recorded,
    stepped,
    values_of,
)

SCALES = ((8, 1 / 16), (9, 16.0))
"""Key and scale of further leaves."""
ROUNDOFFS = 16
"""Units of roundoff by which leaves are moved, to see how far rounding reaches."""
NEIGHBOURS = 3
SLACK = 4.0
TINY = 1e-9
"""The size of numbers that are compared in absolute terms: a saturated model has gradients of 1e-30."""
OBLIGATION: Mapping[str, str] = {
    "grad": "GA-EQ-001",
    "param": "GA-INV-003",
    "state": "GA-INV-003",
    "average": "GA-INV-003",
    "buffer": "GA-INV-003",
    "loss": "GA-INV-001",
    "printed": "GA-INV-001",
}
WORDS: Mapping[str, str] = {
    "grad": "gradient of",
    "param": "weights of",
    "state": "optimizer state",
    "average": "running average",
    "buffer": "module buffer",
    "loss": "returned loss",
    "printed": "printed number",
}
HELP = "compare the two runs by hand at this line: one of the two judges is wrong, or the loop has a state of its own"
Name = tuple[int, str]
"""A window (-1: the end of the run) and the name that an event has for a tensor."""
Difference = tuple[Name, Array, Array, float]
"""A number in both runs, and what is allowed between them."""


@dataclass(frozen=True, slots=True)
class Apart:
    """A number that differs: group, name, window (0-based, -1 the end), the largest difference and what is allowed."""

    group: str
    name: str
    window: int
    size: float
    allowed: float
    where: str
    place: Location

    def __str__(self) -> str:
        at = "at the end" if self.window < 0 else f"in window {self.window + 1}"
        sizes = f"by {self.size:.2g} where {self.allowed:.2g} is allowed"
        return f"the {WORDS[self.group]} {self.name} {at} differs {sizes} ({self.where})"


@dataclass(frozen=True, slots=True)
class Sides:
    """Two recordings to compare, and how to make both again at other leaves."""

    where: str
    ours: Recording
    full: Recording
    wide: bool = False
    scaled: bool = False


class Numbers:
    """The second judge of one session."""

    def __init__(self, session: StepRecordings) -> None:
        self.session = session
        self.run = session.run
        self.missed: list[str] = []
        self.looked: list[str] = []
        passes = sum(1 for _ in session.full[0].tape.events("backward"))
        self.clean = "pass" if passes == self.run.windows + (self.run.tail > 0) else "window"

    def _counted(self) -> None:
        """Printed numbers cannot be compared where the two runs print different amounts."""
        ours, full = (len(printed(r[0].tape)) for r in (self.session.ours, self.session.full))
        if ours != full:
            self.missed.append(f"printed numbers: the run prints {ours}, the full batch {full}")

    def judge(self, made: Verification, results: Mapping[str, Sequence[Result]]) -> Iterator[Result]:
        """An UNKNOWN for each obligation that is held to hold and of which the numbers differ."""
        claimed = {n: [r for r in rows if r.outcome is Outcome.HOLDS or not r.applies] for n, rows in results.items()}
        wanted = {group for group, name in OBLIGATION.items() if claimed.get(name)}
        if any(r.details.get("equal") == "update" for r in claimed.get("GA-EQ-001", ())):
            wanted.discard("grad")
        constants = any(r.reach.startswith(UP_TO_CONSTANTS) for rows in claimed.values() for r in rows)
        found: dict[str, Apart] = {}
        refuted = any(r.outcome is Outcome.REFUTED for rows in results.values() for r in rows)
        for sides in self.sides():
            self.looked.append(sides.where)
            for apart in self.compared(sides, wanted, constants):
                found.setdefault(OBLIGATION[apart.group], apart)
            wanted -= {g for g in OBLIGATION if OBLIGATION[g] in found}
            if refuted or not wanted:  # a refuted step is compared at the recorded values alone
                break
        self._counted()
        if self.looked:
            made.notes.append(f"numbers compared beside the proof: {'; '.join(self.looked)}")
        made.notes += [f"not compared beside the proof: {text}" for text in self.missed]
        for name, apart in found.items():
            if apart.group == "printed":
                help = claimed[name][0].help
                yield Result(name, Outcome.UNKNOWN, f"not decided: {apart}", apart.place, help, "floats")
                continue
            said = claimed[name][0].reason
            words = f'the two judges disagree: the proof says "{said}", and in numbers {apart}'
            yield Result(name, Outcome.UNKNOWN, words, apart.place, HELP, "floats", "", {"code": "judges-disagree"})

    # The runs

    def sides(self) -> Iterator[Sides]:
        """What is compared."""
        ours = self.session.ours
        yield from self._sides("own dtype, recorded values", ours, values_of(ours), wide=False)
        if self.session.ranks > 1:
            self.missed.append("numbers in float64 and at other scales: not compared for several ranks")
            return
        own = self._own_in_float64()
        base, wide = (ours, False) if own is None else (own, True)
        if own is not None:
            yield from self._sides("float64, the function's own values", own, values_of(own), wide=True)
        for key, scale in SCALES:
            values = [moved(v, key, scale) for v in values_of(base)]
            scaled = self.record(False, values, wide)
            where = f"{'float64' if wide else 'own dtype'}, values {scale:g} times as large"
            if scaled[0].error or not finite(scaled[0].tape):
                self.missed.append(f"numbers at values {scale:g} times as large: no finite numbers there")
                continue
            yield from self._sides(where, scaled, values_of(scaled), wide, scaled=True)

    def _own_in_float64(self) -> list[Recording] | None:
        own = self.record(False, None, wide=True)
        if own[0].error:
            self.missed.append(f"numbers in float64: the function does not run in it ({own[0].error.splitlines()[0]})")
            return None
        return own

    def _sides(
        self, where: str, ours: list[Recording], values: list[Values], wide: bool, scaled: bool = False
    ) -> Iterator[Sides]:
        full = self.record(True, values, wide)
        if full[0].error or unmatched(ours[0].tape, full[0].tape):
            self.missed.append(f"numbers ({where}): the full batch could not be run on the same data")
            return
        if not finite(ours[0].tape) or not finite(full[0].tape):
            self.missed.append(f"numbers ({where}): not all of them are finite")
            return
        yield from (Sides(where, a, b, wide, scaled) for a, b in zip(ours, full, strict=True))

    def record(self, full: bool, values: Sequence[Values] | None, wide: bool) -> list[Recording]:
        """One call of the function; the full batch is clean."""
        run = self.run.full_batch() if full else self.run
        clean = self.clean if full else ""
        session = self.session
        if not wide:
            return recorded(session.step, run, session.ranks, values, clean)
        with default_dtype(torch.float64):
            return recorded(session.step, replace(run, dtype=torch.float64), 1, values, clean)

    # The comparison

    def compared(self, sides: Sides, groups: set[str], constants: bool) -> Iterator[Apart]:
        """What differs beyond rounding, the first of each group."""
        unit = max(UNIT[narrowest(r.tape)] for r in (sides.ours, sides.full))
        unit = max(unit, UNIT["float32"]) if constants else unit
        ours, full = contents(sides.ours.tape), contents(sides.full.tape)
        pairs = [(name, a, full[name]) for name, a in ours.items() if name in full and kind(name) in groups]
        pairs += [p for p in returned_pairs(sides.ours.tape, sides.full.tape) if "loss" in groups]
        suspects = [p for p in pairs if distance(*p[1:]) > roundings(unit, *p[1:])]
        if not suspects:
            return
        spread = self.spread(sides, unit)
        last_place = {
            name: place for side in (sides.ours, sides.full) for name, (_, place) in printed(side.tape).items()
        }
        apart = []
        for name, a, b in sorted(suspects, key=lambda s: s[0][0] if s[0][0] >= 0 else 1 << 30):
            allowed = roundings(unit, a, b) + SLACK * spread.get(name, 0.0) + last_place.get(name, 0.0)
            if distance(a, b) > allowed:
                apart.append((name, a, b, allowed))
        stated: set[str] = set()
        for name, a, b, allowed in self._unsaturated(apart, sides, ours, full):
            if kind(name) not in stated:
                stated.add(kind(name))
                place = place_of(sides.ours.tape, name)
                text = name[1].partition("/")[2]
                yield Apart(kind(name), text, name[0], distance(a, b), allowed, sides.where, place)

    def _unsaturated(
        self, apart: list[Difference], sides: Sides, ours: Mapping[Name, Array], full: Mapping[Name, Array]
    ) -> list[Difference]:
        """At other scales: what differs before the first window with a gradient lost in rounding, and gradients there.

        Where a softmax is saturated its terms cancel, and what is left of a gradient is rounding. An optimizer that
        divides by the size of a gradient makes steps of that, so that later numbers say nothing.
        """
        if not apart or not sides.scaled:
            return apart
        grads = [(n, a, full[n]) for n, a in ours.items() if kind(n) == "grad" and n in full]
        lost = [name[0] for name, a, b in grads if a.size == b.size and lost_in_rounding(a.ravel(), b.ravel())]
        if not lost:
            return apart
        first = min(lost)
        self.missed.append(f"numbers ({sides.where}) from window {first + 1} on: a gradient there is lost in rounding")
        before = [d for d in apart if 0 <= d[0][0] < first and kind(d[0]) != "loss"]
        return before + [
            d for d in apart if d[0][0] == first and kind(d[0]) == "grad" and distance(d[1], d[2]) > UNIT["float64"]
        ]

    def spread(self, sides: Sides, unit: float) -> dict[Name, float]:
        """How far every number moves when the leaves move by a few units of roundoff."""
        base = contents(sides.ours.tape) | dict(returned(sides.ours.tape))
        found: dict[Name, float] = {}
        if self.session.ranks > 1:
            return {name: float("inf") for name in base}
        for key in range(1, NEIGHBOURS + 1):
            values = [nudged(v, key, ROUNDOFFS * unit) for v in values_of([sides.ours])]
            near = self.record(False, values, sides.wide)[0]
            for name, b in (contents(near.tape) | dict(returned(near.tape))).items():
                if name in base:
                    found[name] = max(found.get(name, 0.0), distance(base[name], b))
        return found


def nudged(values: Mapping[Key, Array], key: int, size: float) -> Mapping[Key, Array]:
    """Every leaf moved by at most `size` of itself (of 1 where it is 0)."""
    rng = np.random.default_rng(key)
    found = {
        n: v + rng.uniform(-size, size, v.size) * np.where(v == 0, 1.0, np.abs(v)) for n, v in sorted(values.items())
    }
    return values.with_values(found) if isinstance(values, Streams) else found


def kind(name: Name) -> str:
    """The group of a number."""
    return name[1].partition("/")[0]


def lost_in_rounding(a: Array, b: Array) -> bool:
    """Whether some element differs by more than its own rounding, and by no more than that of a number of size 1."""
    size, unit = np.abs(a - b), UNIT["float64"]
    return bool(np.any((size <= unit) & (size > granted(unit, 1.0) * np.maximum(np.abs(a), np.abs(b)))))


def roundings(unit: float, a: Array, b: Array) -> float:
    """What rounding is granted without a look at the neighbours; below `TINY` numbers are nothing but rounding."""
    return granted(unit, largest(a), largest(b), least=TINY)


def largest(a: Array) -> float:
    """The largest magnitude, 0 of nothing."""
    return float(np.max(np.abs(a), initial=0.0))


def distance(a: Array, b: Array) -> float:
    """The largest difference; infinite for other shapes."""
    a, b = (np.asarray(x, dtype=np.float64).ravel() for x in (a, b))
    return float(np.max(np.abs(a - b), initial=0.0)) if a.size == b.size else float("inf")


def contents(tape: Tape) -> dict[Name, Array]:
    """Every number that is compared but the losses, by window and name."""
    found: dict[Name, Array] = {}
    for index, window in enumerate(stepped(tape)):
        found |= _window(index, window)
    for event in tape.events("end"):
        found |= {(-1, n): v for n, v in event.values.items() if n.startswith(("param/", "average/"))}
    found |= {name: np.asarray([x]) for name, (x, _) in printed(tape).items()}
    return found | {(-1, f"buffer/{n}"): v for n, v in tape.buffers.items()}


def printed(tape: Tape) -> dict[Name, tuple[float, float]]:
    """The decimal fractions that a function prints which returns no number, each with the size of its last place."""
    if any(numbers_of(tape)):
        return {}
    count = len(tape.printed)
    return {(-1, f"printed/{i} of {count}"): pair for i, pair in enumerate(tape.printed, 1)}


def _window(index: int, window: ReadWindow) -> dict[Name, Array]:
    before = _values([o.event for o in window.steps], ("grad/",))
    after = _values([o.event for o in window.stepped], ("param/", "state/"))
    return {(index, name): value for name, value in (before | after).items()}


def _values(events: Sequence[Event], prefixes: tuple[str, ...]) -> dict[str, Array]:
    return {n: v for e in events for n, v in e.values.items() if n.startswith(prefixes)}


def returned(tape: Tape) -> Iterator[tuple[Name, Array]]:
    """The numbers that the function returned, named as `returned_pairs` names them."""
    yield from ((name, a) for name, a, _ in returned_pairs(tape, tape))


def place_of(tape: Tape, name: Name) -> Location:
    """The step of the window, or the last one."""
    steps = [w.place() for w in stepped(tape)]
    return steps[min(name[0], len(steps) - 1)] if steps else NOWHERE


ASIDE = ("buffer", "printed")
"""Numbers that are no part of the training step."""

EQUAL = "every gradient, weight and optimizer state of the recorded run is the full batch's"
MEANT = {
    "zero": ("an accumulator of the loop's own", "keep the window's sum in .grad until the step, and zero it after"),
    "step": ("a loop of several epochs", "train run.windows windows of run.accum_steps micro-batches, once"),
    "end": (
        "a gradient that autograd.grad returns and that makes new weights",
        "write the new weights into the old ones",
    ),
    "rate": ("a rate that is a function of the samples seen", "set the learning rate once a window, before its step"),
    "schedule": ("a schedule of the samples seen", "advance the schedule once a window, after its step"),
    "weights": ("a step that moves the weights and moves them back, as SAM does", "change weights in the step only"),
}
"""By the event: what in a right loop looks the same, and how to write the loop so that it can be decided."""

ALIKE = "a constant that is made inside the step, a batch that is made ahead and a validation pass look the same"
CONSTANTS = "make constants before the loop, no batch that is not trained on, and validate outside of the function"


def agree(ours: Sequence[Recording], full: Sequence[Recording]) -> bool:
    """Whether the numbers at every step, after it and at the end are the same in both runs, within rounding."""
    if any(r.error for r in (*ours, *full)):
        return False
    return all(_agree(a.tape, b.tape) for a, b in zip(ours, full, strict=True))


def _agree(ours: Tape, full: Tape) -> bool:
    """Equal but for roundings of the largest number of the same kind: a gradient may be nothing but rounding."""
    unit = max(UNIT[narrowest(ours)], UNIT[narrowest(full)])
    mine, theirs = ({n: v for n, v in contents(tape).items() if kind(n) not in ASIDE} for tape in (ours, full))
    if len(stepped(ours)) != len(stepped(full)) and foreign(ours):
        mine, theirs = ({n: v for n, v in side.items() if n[0] < 0} for side in (mine, theirs))
    if not mine or mine.keys() != theirs.keys():
        return False
    for group in {kind(n) for n in mine}:
        names = [n for n in mine if kind(n) == group]
        most = max(max(largest(mine[n]), largest(theirs[n])) for n in names)
        if max(distance(mine[n], theirs[n]) for n in names) > granted(unit, most):
            return False
    return True


def everywhere_alike(session: StepRecordings) -> bool:
    """Whether the numbers agree at the recorded values, and at other ones where those were recorded."""
    if not agree(session.ours, session.full):
        return False
    if not session.moved:
        return True
    _, ours, full = next(session.elsewheres())
    return agree(ours, full)


def matched(session: StepRecordings) -> bool:
    """Whether the numbers agree although the streams of data do not: as matched, as the function draws them, or with
    a line that makes data for several callers as one source for each."""
    if agree(session.ours, session.full):
        return True
    step, run, ranks = session.step, session.run, session.ranks
    if agree(session.ours, recorded(step, run.full_batch(), ranks)):
        return True
    run = replace(run, by_callers=True)
    ours = recorded(step, run, ranks)
    return agree(ours, recorded(step, run.full_batch(), ranks, values_of(ours)))


# The window protocol


def borne_out(session: StepRecordings, broken: Sequence[Broken]) -> tuple[list[Broken], list[Broken]]:
    """Violations of the window protocol that stand, and those that no number bears out."""
    tape = session.ours[0].tape
    if returned_only(tape) and (unapplied := [b for b in broken if b.event == "end"]):
        return [b for b in broken if b not in unapplied], unapplied
    doubted = [b for b in broken if _doubtful(b, tape)]
    if _schedules(tape) != _schedules(session.full[0].tape):
        doubted = [b for b in doubted if b.event not in ("rate", "schedule")]
    if not doubted or not everywhere_alike(session):
        return list(broken), []
    return [b for b in broken if b not in doubted], doubted


def _schedules(tape: Tape) -> tuple[list[list[float]], dict[int, float]]:
    """The learning rates of every step, and how far each scheduler has come at the end."""
    rates = [event.detail.get("lr", []) for event in tape.events("step")]
    return rates, {e.detail["scheduler"]: round(float(e.detail["last"]), 9) for e in tape.events("schedule")}


def _doubtful(broken: Broken, tape: Tape) -> bool:
    """Whether a right loop can look so: its gradients reach the step all the same, and each step has new ones."""
    if broken.event in ("rate", "schedule", "state"):
        return True
    rules, state, event = table().RULES, table().State, table().Event
    if broken.why == rules[state.OPEN, event.ZERO].why:
        return foreign(tape) or _handed(broken, tape)
    early = {rules[state.OPEN, event.STEP].why, rules[state.FULL, event.ACCUMULATE].why, table().EXTRA.why}
    return (broken.why in early and _new_at_every_step(tape)) or broken.why in (CHANGED, AVERAGED)


def _handed(broken: Broken, tape: Tape) -> bool:
    """Whether the gradients that seem lost are handed to every step, and are not zero."""
    names = {f"grad/{name}" for name in broken.params}
    cut = stepped(tape)
    if not cut:
        return _moved(set(broken.params), tape)
    for window in cut:
        held = {n: v for o in window.steps for n, v in o.event.values.items() if n.startswith("grad/")}
        named = {n: v for n, v in held.items() if n in names} or held
        if not any(np.any(v) for v in named.values()):
            return False
    return True


def _moved(names: Set[str], tape: Tape) -> bool:
    """Whether a loop that steps by hand moved every one of these weights."""
    before = {leaf.source.name: leaf.value for leaf in tape.leaves() if leaf.source.kind == "param"}
    after = {name.removeprefix("param/"): v for event in tape.events("end") for name, v in event.values.items()}
    return all(name in before and name in after and np.any(before[name] != after[name]) for name in names)


def _new_at_every_step(tape: Tape) -> bool:
    """Whether a backward pass lies between any two steps of an optimizer."""
    fresh: dict[object, bool] = {}
    for event in tape.events():
        if event.kind == "backward":
            fresh = {}
        elif event.kind == "step":
            key = event.detail.get("optimizer")
            if key in fresh:
                return False
            fresh[key] = False
    return True


def undecided(doubted: Sequence[Broken], refuted: Sequence[Broken]) -> Iterator[Result]:
    """Results of violations that no number bears out, and of what was not followed any further."""
    for broken in doubted:
        alike, help = MEANT.get(broken.event, MEANT["step"])
        but = "" if broken.event == "end" else f", but {EQUAL}"
        words = f"not decided: {broken.why}, as it seems{but}; {alike} looks the same"
        details = {"event": str(broken.event), "micro_batch": broken.micro, "parameters": list(broken.params)}
        yield Result(broken.obligation, Outcome.UNKNOWN, words, broken.place, help, "events", RECORDED, details)
    known = {b.obligation for b in (*doubted, *refuted)}
    first = next((b for b in (*doubted, *(b for b in refuted if b.last))), None)
    for name in FOLLOWED if first else ():
        if first is not None and name not in known:
            seems = "seems to break" if first in doubted else "breaks"
            words = f"not decided: the events were followed up to an act that {seems} {first.obligation}"
            help = MEANT.get(first.event, MEANT["step"])[1] if first in doubted else "repair what breaks the rule first"
            yield Result(name, Outcome.UNKNOWN, words, first.place, help, "events", RECORDED)
