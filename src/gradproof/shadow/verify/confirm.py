"""Whether the recorded numbers bear out what events and streams of data only suggest.

A zero before the step, a step in the middle of a window, a weight that moved inside of it, or data that the other run
did not see are wrong in most loops and right in some: an accumulator of the user's own, two epochs, SAM, a batch made
ahead. Where every gradient, weight and state is the full batch's, the suspicion is neither confirmed nor removed: both
runs may share the mistake. The answer is undecided then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace

import numpy as np

from gradproof.core.outcome import Outcome
from gradproof.shadow.protocol.event_ops import AVERAGED, CHANGED, FOLLOWED
from gradproof.shadow.protocol.window import Broken, table
from gradproof.shadow.record.run import Recording
from gradproof.shadow.result import RECORDED, Result
from gradproof.shadow.tape import Tape
from gradproof.shadow.verify.numbers import contents, distance, kind, largest
from gradproof.shadow.verify.obligations import foreign, granted, returned_only
from gradproof.shadow.verify.recordings import UNIT, Session, narrowest, recorded, stepped, values_of

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


def everywhere_alike(session: Session) -> bool:
    """Whether the numbers agree at the recorded values, and at other ones where those were recorded."""
    if not agree(session.ours, session.full):
        return False
    if not session.moved:
        return True
    _, ours, full = next(session.elsewheres())
    return agree(ours, full)


def matched(session: Session) -> bool:
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


def borne_out(session: Session, broken: Sequence[Broken]) -> tuple[list[Broken], list[Broken]]:
    """Offences against the window protocol that stand, and those that no number bears out."""
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
    """Results of offences that no number bears out, and of what was not followed any further."""
    for broken in doubted:
        alike, mend = MEANT.get(broken.event, MEANT["step"])
        but = "" if broken.event == "end" else f", but {EQUAL}"
        words = f"not decided: {broken.why}, as it seems{but}; {alike} looks the same"
        details = {"event": str(broken.event), "micro_batch": broken.micro, "parameters": list(broken.params)}
        yield Result(broken.obligation, Outcome.UNKNOWN, words, broken.place, mend, "events", RECORDED, details)
    known = {b.obligation for b in (*doubted, *refuted)}
    first = next((b for b in (*doubted, *(b for b in refuted if b.last))), None)
    for name in FOLLOWED if first else ():
        if first is not None and name not in known:
            seems = "seems to break" if first in doubted else "breaks"
            words = f"not decided: the events were followed up to an act that {seems} {first.obligation}"
            mend = MEANT.get(first.event, MEANT["step"])[1] if first in doubted else "repair what breaks the rule first"
            yield Result(name, Outcome.UNKNOWN, words, first.place, mend, "events", RECORDED)
