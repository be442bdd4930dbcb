"""Reads of values: which paths of the step were recorded, and a search for inputs that take the others.

A Python branch on a tensor reads a truth value from it (the event `item`); `tolist`, NumPy, a pickle or a printed
tensor read its numbers, and `nonzero` or a mask makes a shape of them (`Tape.reads`). What is proved is proved for the
path that was recorded, and the reach of a result says so (`narrow`). Recordings at other leaves (moved, and scaled up
and down, so that a norm falls on the other side of its limit) find further paths, up to `TRIES`; each is verified as a
step of its own. A branch of which one side was never taken is reported as not covered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from gradproof.core import Outcome
from gradproof.shadow.run import Recording
from gradproof.shadow.session import Session, apart, finite, recorded, same_path, values_of
from gradproof.shadow.tape import Event, Tape
from gradproof.shadow.verdict import UNMET, UNREAD, Result, on_path

TRIES = ((2, 0.05), (3, 20.0))
"""Key and scale of the further leaves that are tried: both sides of a limit within a factor of 20 are reached."""
MOST = 4
"""Paths that are verified at most: each costs as much as the first."""


def branches(tape: Tape) -> Iterator[tuple[str, bool]]:
    """Truth values that Python read from tensors: the line, and which way it went."""
    for event in tape.events("item"):
        if is_branch(event):
            yield str(event.place), bool(np.any(event.values["value"]))


def is_branch(event: Event) -> bool:
    """Whether the number that was read is a truth value."""
    return isinstance(event.detail.get("result"), bool) and "value" in event.values


def numbers_read(sessions: list[Session]) -> list[str]:
    """Lines at which Python read numbers from a tensor: what it did with them is not followed."""
    found = [str(e.place) for tape in tapes(sessions) for e in tape.events("item") if not is_branch(e)]
    return list(dict.fromkeys([*found, *(str(mark.place) for tape in tapes(sessions) for mark in tape.reads)]))


def tapes(sessions: list[Session]) -> list[Tape]:
    """The tapes of the runs with micro-batches."""
    return [recording.tape for session in sessions for recording in session.ours]


def constants(sessions: list[Session]) -> list[str]:
    """Floats that were neither drawn nor given, as an assumption."""
    found = dict.fromkeys(mark for tape in tapes(sessions) for mark in tape.constants)
    return [
        f"the floats made at {m.place} ({m.how}) are constants, with the numbers of the recorded run" for m in found
    ]


def narrow(results: Iterable[Result], sessions: list[Session], conditions: list[str]) -> list[str]:
    """Say of results that hold for which path they do; returns what was not covered, in words.

    `conditions`: what was taken for granted about numbers of the path, in words that end with a line.
    """
    branched = [place for tape in tapes(sessions) for place, _ in branches(tape)]
    places = [*numbers_read(sessions), *branched, *(text.rpartition(", at ")[2] for text in conditions)]
    lines = list(dict.fromkeys(place.replace("\\", "/").rpartition("/")[2] for place in places))
    for result in results:
        if result.outcome is Outcome.HOLDS:
            result.reach = on_path(result.reach, lines)
    return [*uncovered(sessions), *(f"{UNMET}{text}" for text in conditions)]


def others(session: Session) -> Iterator[Session]:
    """Sessions of further paths: each differs in its operators from all before it."""
    known = [session.ours]
    for made in session.away:
        if len(known) < MOST and usable(made) and differs(known, made):
            known.append(made)
            yield following(session, made)
    reads = any(r.tape.reads or any(True for _ in r.tape.events("item")) for r in session.ours)
    if session.ranks > 1 or (not reads and len(known) == 1):
        return
    for key, scale in TRIES:
        made = recorded(session.step, session.run, session.ranks, session.elsewhere(key, scale))
        if len(known) < MOST and usable(made) and (differs(known, made) or flows(session, made)):
            known.append(made)
            yield following(session, made)


def usable(made: list[Recording]) -> bool:
    """Whether a recording came to its end with finite numbers."""
    return not any(r.error or not finite(r.tape) for r in made)


def differs(known: list[list[Recording]], made: list[Recording]) -> bool:
    """Whether a recording took none of the known paths."""
    return not any(same_path(one, made) for one in known)


def flows(session: Session, made: list[Recording]) -> bool:
    """Whether a constant or a Python number of the same path is another one here."""
    return same_path(session.ours, made) and bool(apart(session.ours, made))


def following(session: Session, ours: list[Recording]) -> Session:
    """The session of a path: the same leaves for the full batch, and values of its own nearby."""
    full = recorded(session.step, session.run.full_batch(), session.ranks, values_of(ours))
    made = replace(session, ours=ours, full=full, moved=[], away=[], seconds={})
    made.moved = made.move()
    return made


def uncovered(sessions: list[Session]) -> list[str]:
    """Paths that no recording took, in words: ways of branches, other numbers at reads, other shapes."""
    found: list[str] = []
    taken: dict[str, set[bool]] = {}
    for tape in tapes(sessions):
        for place, way in branches(tape):
            taken.setdefault(place, set()).add(way)
    for place, ways in taken.items():
        yes = f"the branch at {place} was {next(iter(ways))} in every recording"
        both = f"the branch at {place} went both ways: not every combination of them was recorded"
        found.append(yes if len(ways) == 1 else both)
    numbers = dict.fromkeys(str(e.place) for tape in tapes(sessions) for e in tape.events("item") if not is_branch(e))
    found += [f"Python reads a number at {place}: {UNREAD}" for place in numbers]
    marks = dict.fromkeys(mark for tape in tapes(sessions) for mark in tape.reads)
    return found + [f"{m.how} at {m.place} reads numbers: {UNREAD}" for m in marks]
