"""From what was compared to one result an obligation.

A gradient that differs is refuted only when the difference is seen on the real step too, at the same leaves; it may be
explained first: by a violation against the window protocol, by data that do not match, by statistics over the batch, by
constants that are not the numbers that they stand for, or by a learning rate that makes up for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gradproof.core.outcome import Outcome
from gradproof.shadow.domains.interpreter import Observation
from gradproof.shadow.protocol.event_ops import BOUNDS, base
from gradproof.shadow.record.run import Recording, Run
from gradproof.shadow.result import Result
from gradproof.shadow.tape import Array, Const, Event, Location, Tape, held_in
from gradproof.shadow.verify.compare import Decision, Quantity, same, windows
from gradproof.shadow.verify.diagnosis import Scale, help_for, place_of_gradient, place_of_loss, scale
from gradproof.shadow.verify.recordings import NOT_FATAL, UNIT, StepRecordings, narrowest, recorded, stepped, values_of

ROUNDINGS = 64
LOOSEST = 1 / 16
TINY = 1e-12
LIKE = 1e-2
"""How far numbers may be from one multiple of the losses and still be taken for them."""
WHOLE = frozenset({"bool", "uint8", "int8", "int16", "int32", "int64"})
GROUPS = {
    "grad": "GA-EQ-001",
    "loss": "GA-INV-001",
    "weights": "GA-INV-003",
    "state": "GA-INV-003",
    "average": "GA-INV-003",
    "sync": "GA-SYNC-001",
}
PREFIX = {"grad": "grad/", "weights": "param/", "state": "state/", "sync": "param/", "average": "average/"}


@dataclass(frozen=True, slots=True)
class SeenDifference:
    """A difference on the real step: the largest, relative to the full batch's largest number, and the relation."""

    size: float
    scale: Scale | None
    ours: Array
    full: Array
    where: str


def replay(session: StepRecordings, quantity: Quantity) -> SeenDifference | None:
    """The difference on the real step at the recorded values, else at the moved ones; None when there is none."""
    rank = quantity.rank
    if quantity.event == "stated":
        ours, root = (content(session.full[rank].tape, replace(quantity, event=e)) for e in ("loss", "backward"))
        return _seen(ours, root, session.full, "the recorded values, in the full batch's run")
    if quantity.group == "sync":
        return measured(session.ours[rank], session.ours[0], quantity, "the recorded values")
    first = measured(session.ours[rank], session.full[rank], quantity, "the recorded values")
    if first is not None or not session.moved:
        return first
    for where, mine, theirs in session.elsewheres():
        found = measured(mine[rank], theirs[rank], quantity, where)
        if found is not None:
            return found
    return None


def measured(ours: Recording, full: Recording, quantity: Quantity, where: str) -> SeenDifference | None:
    """Compare the contents of the storages of two recordings; None when they agree within rounding."""
    a, b = (content(r.tape, quantity) for r in (ours, full))
    return _seen(a, b, (ours, full), where)


def _seen(a: Array | None, b: Array | None, recordings: Sequence[Recording], where: str) -> SeenDifference | None:
    if a is None or b is None or a.size != b.size:
        return None
    a, b = np.ravel(a), np.ravel(b)
    unit = max(UNIT[narrowest(r.tape)] for r in recordings)
    largest = float(np.max(np.abs(b), initial=0.0))
    size = float(np.max(np.abs(a - b), initial=0.0))
    if not np.isfinite(size) or size <= granted(unit, largest, float(np.max(np.abs(a), initial=0.0))):
        return None
    return SeenDifference(size / largest if largest else float("inf"), scale(a, b), a, b, where)


def content(tape: Tape, quantity: Quantity) -> Array | None:
    """What the storages held for a quantity, as float64."""
    seen = [Observation(e) for e in tape.events() if e.refs]
    if quantity.group == "loss":
        return _loss(tape, quantity)
    prefix = PREFIX[quantity.group]
    name = prefix + quantity.name
    if quantity.event == "end":
        events = [o.event for o in seen if o.event.kind == "end"]
    else:
        cut = [w for w in windows(seen) if w.steps]
        if quantity.window >= len(cut):
            return None
        chosen = cut[quantity.window]
        before = quantity.group == "grad" or quantity.event == "step"
        events = [o.event for o in (chosen.steps if before else chosen.stepped)]
    return next((event.values[name] for event in events if name in event.values), None)


def _loss(tape: Tape, quantity: Quantity) -> Array | None:
    if quantity.event == "loss":
        return next((e.values[quantity.name] for e in tape.events("loss") if quantity.name in e.values), None)
    every = windows([Observation(e) for e in tape.events() if e.refs])
    cut = [w for w in every if w.steps] or every
    if quantity.window >= len(cut):
        return None
    roots = [v.sum() for o in cut[quantity.window].roots for n, v in o.event.values.items() if n.startswith("root")]
    return np.asarray([np.sum(roots)])


@dataclass(frozen=True, slots=True)
class ReportedLosses:
    """What the numbers that a function returns say of GA-INV-001: an outcome, and in words why."""

    outcome: Outcome
    words: str


def reported(session: StepRecordings) -> ReportedLosses | None:
    """The returned numbers that no domain compares against the full batch's; None where there are none.

    Floating-point tensors are compared by the domains where the full batch returns as many.
    """
    ours, full = (numbers_of(r[0].tape) for r in (session.ours, session.full))
    found = [_reported(session, *sides) for sides in zip(ours, full, strict=True) if sides[0] or sides[1]]
    return min(found, key=lambda r: (Outcome.REFUTED, Outcome.UNKNOWN, Outcome.HOLDS).index(r.outcome), default=None)


def numbers_of(tape: Tape) -> tuple[list[float], list[float]]:
    """The numbers that a function returned: those in floating-point tensors, and all others."""
    values = [v for e in tape.events("loss") for _, v in sorted(e.values.items())]
    return [float(x) for v in values for x in np.ravel(v)], [float(x) for x in tape.returned or []]


def returns_nothing(session: StepRecordings) -> bool:
    """Whether no call of the function returned a number."""
    return not any(side for r in (*session.ours[:1], *session.full[:1]) for side in numbers_of(r.tape))


def _reported(session: StepRecordings, ours: list[float], full: list[float]) -> ReportedLosses:
    unit = max(UNIT[narrowest(r[0].tape)] for r in (session.ours, session.full))
    steps = sum(1 for e in session.full[0].tape.events("step"))
    if len(ours) == session.run.micro_batches != len(full) == steps:
        return _shares(session.run, ours, full, unit)
    if len(ours) != len(full):
        words = f"{len(ours)} numbers are returned, {len(full)} with the full batch: which are losses is not known"
        return ReportedLosses(Outcome.UNKNOWN, words)
    right = _as_roots(session, list(full), unit)
    alike = [close(a, b, unit) for a, b in zip(ours, right, strict=True)]
    for index, (a, b) in enumerate(zip(ours, right, strict=True)):
        if not alike[index]:
            words = f"number {index + 1} is {a:.6g}, with the full batch {b:.6g}"
            whole = a.is_integer() and b.is_integer()
            known = _is_a_loss(session, alike, full, steps, unit) and not whole and _steady(session, unit)
            why = "" if known else "; whether it is a loss is not known"
            return ReportedLosses(Outcome.REFUTED if known else Outcome.UNKNOWN, words + why)
    words = f"equal to the full batch's within rounding, {len(full)} numbers"
    if not _holds_the_mean(session, full, unit):
        more = "none of them goes with the mean loss from window to window, and which number is the loss is not known"
        return ReportedLosses(Outcome.UNKNOWN, f"{words}; {more}")
    return ReportedLosses(Outcome.HOLDS, words)


def _shares(run: Run, ours: list[float], full: list[float], unit: float) -> ReportedLosses:
    """One number for each micro-batch: the mean over a window, or the sum of its shares, is the full batch's."""
    sizes = [run.accum_steps] * run.windows + [run.tail] * (run.tail > 0)
    ends = np.cumsum(sizes)
    parts = [np.asarray(ours[end - n : end]) for n, end in zip(sizes, ends, strict=True)]
    for name in ("mean", "sum"):
        if all(close(float(getattr(part, name)()), right, unit) for part, right in zip(parts, full, strict=False)):
            return ReportedLosses(
                Outcome.HOLDS, f"one a micro-batch; their {name} over each window is the full batch's"
            )
    return ReportedLosses(Outcome.UNKNOWN, "one a micro-batch; neither their mean nor their sum is the full batch's")


def granted(unit: float, *sizes: float, least: float = 1e-12) -> float:
    """What rounding is granted on numbers of these sizes; below `least` in absolute terms."""
    return ROUNDINGS * unit * max(*sizes, least)


def close(a: float, b: float, unit: float) -> bool:
    """Equal within rounding, as losses are: means of a few numbers, which 16 bits do not move by a fifth."""
    return abs(a - b) <= min(granted(unit, abs(a), abs(b)), LOOSEST * max(abs(a), abs(b), TINY)) or a == b


def _steady(session: StepRecordings, unit: float) -> bool:
    """Whether the function returns the same numbers when it is called again."""
    again = recorded(session.step, session.run, session.ranks, values_of(session.ours))
    first, second = ([x for side in numbers_of(r[0].tape) for x in side] for r in (session.ours, again))
    return len(first) == len(second) and all(close(a, b, unit) for a, b in zip(first, second, strict=True))


def returned_pairs(ours: Tape, full: Tape) -> list[tuple[tuple[int, str], Array, Array]]:
    """The returned numbers of two runs side by side, by place; none where the runs return different amounts."""
    made = []
    for kind, a, b in zip(("tensor", "number"), numbers_of(ours), numbers_of(full), strict=True):
        pairs = zip(a, b, strict=True) if len(a) == len(b) else ()
        made += [((0, f"loss/{kind} {i + 1}"), np.asarray([x]), np.asarray([y])) for i, (x, y) in enumerate(pairs)]
    return made


def integers_of(tape: Tape) -> list[str]:
    """That the integers of a run are those that were recorded, as assumptions."""
    said = []
    if tape.integers:
        said.append(f"token ids, targets and masks are those of the recorded run ({len(tape.integers)} sites)")
    made = (c for e in tape.entries() for c in held_in((*e.args, *e.kwargs.values()), Const))
    if any(c.dtype in WHOLE and np.size(c.value) > 1 for c in made):
        said.append("integers and truth values that the function makes are those of the recorded run")
    return said


def _roots(session: StepRecordings) -> list[float]:
    """What the full batch's backward passes began with, summed over each window."""
    cut = stepped(session.full[0].tape)
    return [sum(float(np.sum(v)) for o in w.roots for v in o.event.values.values()) for w in cut]


def _is_a_loss(session: StepRecordings, alike: list[bool], full: list[float], steps: int, unit: float) -> bool:
    """Whether a number that differs is a loss: one a window, or several of which none that is right is the loss."""
    each = len(full) // steps if steps else 0
    if len(full) == steps > 0 or each * steps != len(full):
        return len(full) >= steps > 0
    right = [j for j in range(each) if all(alike[j::each])]
    return steps > 0 and not any(_is_the_mean(_roots(session), full[j::each], unit) for j in right)


def _holds_the_mean(session: StepRecordings, full: list[float], unit: float) -> bool:
    """Whether some number of each window is one multiple of the window's loss; true where that cannot be seen."""
    roots = _roots(session)
    count = len(roots)
    if count < 2 or not all(roots) or not full or len(full) % count:
        return True
    return any(_is_the_mean(roots, full[j :: len(full) // count], unit) for j in range(len(full) // count))


def _is_the_mean(roots: list[float], numbers: list[float], unit: float) -> bool:
    """Whether numbers are one multiple of the losses of their windows, but for the places that they are rounded to."""
    whole = all(x.is_integer() for x in numbers)
    first = numbers[0]
    allowed = [max(LIKE, ROUNDINGS * unit) * abs(r * first) + whole * (abs(r) + abs(roots[0])) for r in roots]
    return all(abs(x * roots[0] - r * first) <= a for x, r, a in zip(numbers, roots, allowed, strict=True))


def _as_roots(session: StepRecordings, full: list[float], unit: float) -> list[float]:
    """What the full batch should have returned: the roots of its windows, where the first number is the first root."""
    roots = _roots(session)
    if len(roots) != len(full) or not abs(full[0] - roots[0]) <= ROUNDINGS * unit * abs(roots[0]):
        return full
    return roots


def one_factor(session: StepRecordings, quantities: Sequence[Quantity]) -> Scale | None:
    """The one factor by which every quantity differs from the full batch's, if there is one."""
    found: list[Scale] = []
    for quantity in quantities:
        seen = measured(session.ours[quantity.rank], session.full[quantity.rank], quantity, "")
        if seen is None or seen.scale is None or not seen.scale.proportional:
            return None
        found.append(seen.scale)
    same = all(abs(s.factor - found[0].factor) <= 1e-3 * abs(found[0].factor) for s in found)
    return found[0] if same and found else None


def refuted(session: StepRecordings, quantity: Quantity, decision: Decision) -> Result:
    """A quantity that a domain found different: REFUTED where the real step shows it, else SPURIOUS."""
    obligation = GROUPS[quantity.group]
    seen = replay(session, quantity)
    place = blamed(session, quantity)
    if seen is None:
        reason = f"the {decision.domain} domain finds the {quantity} different, the real step does not show it"
        return Result(obligation, Outcome.SPURIOUS, reason, place, "", decision.domain, decision.reach)
    if quantity.group == "grad" and not (seen.scale and seen.scale.proportional):
        place = only_pass(session, quantity) or place
    words = f"the {quantity} is not the full batch's" if quantity.group != "sync" else f"{quantity}: not rank 0's"
    if seen.scale is not None and seen.scale.proportional and abs(seen.scale.factor - 1) > 1e-3:
        words = f"the {quantity} is {seen.scale}"
    example = {
        "quantity": str(quantity),
        **differing(seen.ours, seen.full),
        "relative_difference": seen.size if np.isfinite(seen.size) else None,
        "replayed": f"on the real step, at {seen.where}",
    }
    if str(quantity) in decision.examples:
        example["assignment"] = decision.examples[str(quantity)]
    return Result(
        obligation, Outcome.REFUTED, words, place, help_for(seen.scale, session.run.accum_steps),
        decision.domain, decision.reach, {"factor": seen.scale.factor if seen.scale else None}, example,
    )  # fmt: skip


def differing(ours: Array, full: Array, most: int = 8) -> dict[str, list[Any]]:
    """The elements that differ most, in their order: positions in row-major order, and both numbers."""
    apart = np.abs(ours - full)
    least = 1e-4 * float(np.max(apart, initial=0.0))
    places = sorted(int(i) for i in np.argsort(-apart, kind="stable")[:most] if apart[i] > least)
    return {
        "elements": places,
        "accumulated": [float(ours[i]) for i in places],
        "full_batch": [float(full[i]) for i in places],
    }


def only_pass(session: StepRecordings, quantity: Quantity) -> Location | None:
    """The backward pass of a window of several micro-batches, where it is the only one."""
    tape = session.ours[quantity.rank].tape
    cut = stepped(tape)
    roots = cut[quantity.window].roots if quantity.window < len(cut) else []
    return roots[0].event.place if len(roots) == 1 < session.run.accum_steps else None


def blamed(session: StepRecordings, quantity: Quantity) -> Location:
    """The line that a difference is blamed on. A loss that was returned has a line of its own."""
    tape = session.ours[quantity.rank].tape
    if quantity.event in ("loss", "stated"):
        return place_of_loss(tape, quantity.name)
    if quantity.group == "average":
        places = [e.detail.get("averages", {}).get(quantity.name) for e in tape.events("end")]
        return next((p for p in places if p is not None), quantity.place)
    if quantity.group in ("grad", "loss"):
        return place_of_gradient(tape, quantity.window, quantity.name)
    return quantity.place


def equal_update(decision: Decision, session: StepRecordings) -> bool:
    """Only gradients differ; the weights after every step are equal, and moved; no state of an optimizer differs."""
    apart = {q.group for q in decision.apart}
    known = {q.group for q in decision.equal}
    unsure = [q for q, _, _ in decision.unknown if q is None or q.group != "grad"]
    if apart != {"grad"} or "weights" not in known or decision.missing or unsure:
        return False
    return all(weight_moved(session, q) for q in decision.apart)


def weight_moved(session: StepRecordings, quantity: Quantity) -> bool:
    """Whether the step of a window moved the weight of a gradient."""
    tape = session.ours[quantity.rank].tape
    cut = stepped(tape)
    name = f"param/{quantity.name}"
    for event in (o.event for w in cut[quantity.window : quantity.window + 1] for o in w.steps):
        after = content(tape, replace(quantity, group="weights", event="stepped"))
        if name in event.values and after is not None:
            return not np.array_equal(event.values[name], after)
    return False


def undone(tape: Tape) -> Location | None:
    """A step that moved weights which were put back before the next one, or the end. Other changes are compared."""
    before: Event | None = None
    after: Event | None = None
    for event in tape.events():
        if before is not None and after is not None and event.kind in ("step", "end"):
            names = [n for n in event.values if n.startswith("param/") and n in before.values and n in after.values]
            moved = [n for n in names if not same(before.values[n], after.values[n])]
            if moved and all(same(before.values[n], event.values[n]) for n in moved):
                return after.place
        if event.kind == "step":
            before, after = event, None
        elif event.kind == "stepped":
            after = event
    return None


def foreign(tape: Tape) -> bool:
    """Whether an optimizer is none of torch.optim: its step may accumulate by itself."""
    return any(event.detail.get("foreign") for event in tape.events("step"))


def returned_only(tape: Tape) -> bool:
    """Whether gradients were returned and no step was seen: with torch.func they make new tensors."""
    return next(tape.events("gradients"), None) is not None and next(tape.events("step"), None) is None


def bounded(tape: Tape) -> Location | None:
    """Where weights are written by an operator that holds them within bounds."""
    weights = {leaf.ref.storage for leaf in tape.leaves() if leaf.source.kind == "param"}
    bounding = (e for e in tape.entries() if base(e.op) in BOUNDS and any(r.storage in weights for r in e.writes))
    return next((e.place for e in bounding), None)


def unmoved(tape: Tape) -> Location | None:
    """A step after which no weight had moved, although a gradient times the learning rate is more than rounding."""
    if any(blind.code not in NOT_FATAL for blind in tape.blind):
        return None
    before: Event | None = None
    arrived = graded_once = False
    for event in tape.events():
        arrived = arrived or event.kind == "accumulate"
        graded_once = graded_once or (event.kind == "step" and any(n.startswith("grad/") for n in event.refs))
        if event.kind == "end" and arrived and not graded_once:
            return next((e.place for e in tape.events("step")), None)
        if event.kind == "step" and (before is None or before.detail.get("call") != event.detail.get("call")):
            before = event
        elif event.kind == "stepped" and before is not None and not before.detail.get("skipped"):
            params = [n for n in event.values if n.startswith("param/") and n in before.values]
            still = all(np.array_equal(before.values[n], event.values[n]) for n in params)
            if params and still and _moves(before, UNIT[narrowest(tape)]):
                return before.place
            before = None
    return None


def _moves(step: Event, unit: float) -> bool:
    """Whether the learning rate times a gradient is more than the rounding of its weight."""
    rate = max((abs(float(r)) for r in step.detail.get("lr", [])), default=0.0)
    pairs = ((g, step.values.get(f"param/{n.removeprefix('grad/')}")) for n, g in step.values.items() if "grad/" in n)
    return any(w is not None and np.any(rate * np.abs(g) > 4 * unit * np.abs(w)) for g, w in pairs)


def frozen(tape: Tape) -> bool:
    """Whether no parameter's numbers changed between its first use and the end of the run."""
    ends = [event.values for event in tape.events("end")]
    first: dict[str, Array] = {}
    for leaf in tape.leaves():
        if leaf.source.kind == "param":
            first.setdefault(f"param/{leaf.source.name}", leaf.value)
    return all(same(first[n], v) for values in ends for n, v in values.items() if n in first)


def first_of(quantities: Iterable[Quantity]) -> Quantity:
    """The first that went wrong: by window."""
    return min(quantities, key=lambda q: q.window)
