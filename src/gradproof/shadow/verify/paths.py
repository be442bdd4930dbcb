"""Reads of values and the paths that they choose; and whether a step does the same when nobody records it.

Reads of values: which paths of the step were recorded, and a search for inputs that take the others.

A Python branch on a tensor reads a truth value from it (the event `item`); `tolist`, NumPy, a pickle or a printed
tensor read its numbers, and `nonzero` or a mask makes a shape of them (`Tape.reads`). What is proved is proved for the
path that was recorded, and the reach of a result says so (`narrow`). Recordings at other leaves (moved, and scaled up
and down, so that a norm falls on the other side of its limit) find further paths, up to `TRIES`; each is verified as a
step of its own. A branch of which one side was never taken is reported as not covered.

Whether a step does the same when nobody records it. What is proved is proved of the recorded calls, and a function can
tell that it is recorded: a dispatch mode is on, and torch's functions are wrapped. So it is called again with nothing
around it, for what it returns, and with torch's own hook after each optimizer step, for the parameters. Both must
agree with the recording within `agree.tolerance`, or as nearly as recorded calls at leaves a few units of roundoff
away do: an adaptive optimizer makes a whole step out of a gradient that is nothing but rounding, and torch may take
another kernel where nobody looks.

Where two recorded calls from the same seed already differ (data from an unseeded generator), there is nothing to agree
with: that is reported and is no answer. A function that looks for gradproof itself and behaves in all of these calls is
not found out.
"""

from __future__ import annotations

import inspect
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from gradproof.core.outcome import Outcome
from gradproof.shadow.record.hook_points import params_of
from gradproof.shadow.record.leaves import ELSEWHERE
from gradproof.shadow.record.run import Recording, Run, Step, numbers, seed, stated, tensors
from gradproof.shadow.result import UNMET, UNREAD, Result, Verification, on_path
from gradproof.shadow.tape import NOWHERE, Const, Entry, Event, Location, Tape, blocks_of, sample_axis
from gradproof.shadow.verify.compare import joined, near
from gradproof.shadow.verify.recordings import (
    UNIT,
    Precondition,
    StepRecordings,
    apart,
    distance,
    finite,
    narrowest,
    recorded,
    same_path,
    tolerance,
    values_of,
)

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


def numbers_read(sessions: list[StepRecordings]) -> list[str]:
    """Lines at which Python read numbers from a tensor: what it did with them is not followed."""
    found = [str(e.place) for tape in tapes(sessions) for e in tape.events("item") if not is_branch(e)]
    return list(dict.fromkeys([*found, *(str(mark.place) for tape in tapes(sessions) for mark in tape.reads)]))


def tapes(sessions: list[StepRecordings]) -> list[Tape]:
    """The tapes of the runs with micro-batches."""
    return [recording.tape for session in sessions for recording in session.ours]


def constants(sessions: list[StepRecordings]) -> list[str]:
    """Floats that were neither drawn nor given, as an assumption."""
    found = dict.fromkeys(mark for tape in tapes(sessions) for mark in tape.constants)
    return [
        f"the floats made at {m.place} ({m.how}) are constants, with the numbers of the recorded run" for m in found
    ]


def narrow(results: Iterable[Result], sessions: list[StepRecordings], conditions: list[str]) -> list[str]:
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


def others(session: StepRecordings) -> Iterator[StepRecordings]:
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


def flows(session: StepRecordings, made: list[Recording]) -> bool:
    """Whether a constant or a Python number of the same path is another one here."""
    return same_path(session.ours, made) and bool(apart(session.ours, made))


def following(session: StepRecordings, ours: list[Recording]) -> StepRecordings:
    """The session of a path: the same leaves for the full batch, and values of its own nearby."""
    full = recorded(session.step, session.run.full_batch(), session.ranks, values_of(ours))
    made = replace(session, ours=ours, full=full, moved=[], away=[], seconds={})
    made.moved = made.move()
    return made


def uncovered(sessions: list[StepRecordings]) -> list[str]:
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


# -- Which integer data every window reads: token ids and labels, followed from their site to what takes them.
Site = tuple[str, str, int]
"""The user's line, the operator and the number of its argument."""
Element = tuple[str, int]
"""The site of the data and the place in its stream."""


@dataclass(slots=True)
class Reads:
    """What one operator's argument reads, window by window; `followed`: no element of it came from elsewhere."""

    windows: dict[int, set[Element]] = field(default_factory=dict)
    followed: bool = True

    @property
    def all(self) -> set[Element]:
        """The elements of every window."""
        return set().union(*self.windows.values())


def reads_of(tape: Tape) -> dict[Site, Reads]:
    """Every argument of integers that a forward pass takes."""
    found: dict[Site, Reads] = {}
    window = 0
    for item in tape.items:
        if isinstance(item, Event) and item.kind == "step":
            window += any(window in r.windows for r in found.values())
        elif isinstance(item, Entry) and not item.backward:
            for number, arg in enumerate(item.args):
                if isinstance(arg, Const) and arg.value.dtype.kind == "i":
                    reads = found.setdefault((str(item.place), item.op, number), Reads())
                    elements = _elements(arg, tape)
                    reads.followed = reads.followed and None not in elements
                    reads.windows.setdefault(window, set()).update(e for e in elements if e is not None)
    return found


def _elements(arg: Const, tape: Tape) -> list[Element | None]:
    """The site and place of every element; None for one that is no integer data."""

    def element(number: int) -> Element | None:
        if number == ELSEWHERE:
            return None
        begin, site, first = tape.origins[bisect_right(tape.origins, number, key=itemgetter(0)) - 1]
        return (site, first + number - begin) if site in tape.integers else None

    return [None] if arg.origin is None else [element(number) for number in arg.origin.ravel().tolist()]


def integers_differ(session: StepRecordings) -> str:
    """How the windows' integers are not those of the full batch, or of the other ranks, or not new; else nothing."""
    ours, full = ([reads_of(r.tape) for r in side] for side in (session.ours, session.full))
    for rank, (mine, theirs) in enumerate(zip(ours, full, strict=True)):
        aside = side_by_side(session.ours[rank].tape, session.full[rank].tape)
        for key in mine.keys() & theirs.keys():
            a, b = mine[key], theirs[key]
            same = {site for site, _ in a.all} == {site for site, _ in b.all}
            if a.followed and b.followed and same and not aside & {site for site, _ in a.all}:
                found = _apart(a, b) or _again(a, session.ours[0].tape)
                if found:
                    return found
    return _shared(ours, session) if session.ranks > 1 else ""


def side_by_side(ours: Tape, full: Tape) -> set[str]:
    """Sites of which the full batch has its samples along a later axis: places in the streams are not the same."""
    blocks = blocks_of({site: {np.shape(a) for a in arrays} for site, arrays in ours.integers.items()})
    return {
        s for s, arrays in full.integers.items() if any(sample_axis(blocks.get(s, ()), np.shape(a)) for a in arrays)
    }


def _apart(ours: Reads, full: Reads) -> str:
    for window in sorted(ours.windows.keys() & full.windows.keys()):
        a, b = ours.windows[window], full.windows[window]
        if a != b:
            words = f"reads {len(a)} integers of the data, the full batch {len(b)}, {len(a & b)} of both"
            return f"window {window + 1} {words}"
    return ""


def _again(reads: Reads, tape: Tape) -> str:
    first, *others = reads.windows.values()
    if not others or not first or any(w != first for w in others):
        return ""
    unread = _unread(first, tape)
    return (
        f"every window reads the same integers, and {unread} of them are never read" if unread > len(first) / 2 else ""
    )


def _unread(read: set[Element], tape: Tape) -> int:
    held = sum(np.size(a) for site in {site for site, _ in read} for a in tape.integers[site])
    return int(held) - len(read)


def _shared(ours: Sequence[dict[Site, Reads]], session: StepRecordings) -> str:
    """All ranks read the same elements of the same data, and leave as many to nobody."""
    for key in set(ours[0]).intersection(*ours[1:]):
        each = [reads[key] for reads in ours]
        first = each[0].all
        if not first or any(not r.followed or r.all != first for r in each):
            continue
        unread = _unread(first, session.ours[0].tape)
        if unread > len(first) / 2 and _same_data({site for site, _ in first}, session):
            return f"every rank reads the same samples, and {unread} integers of the data are read by none"
    return ""


def _same_data(sites: set[str], session: StepRecordings) -> bool:
    return all(_alike(site, [r.tape for r in session.ours]) for site in sites)


def _alike(site: str, tapes: Sequence[Tape]) -> bool:
    streams = _streams(site, tapes)
    first = next(streams)
    return all(np.array_equal(first, other) for other in streams)


def _streams(site: str, tapes: Sequence[Tape]) -> Iterator[np.ndarray]:
    return (joined(tape.integers.get(site, []), ()) for tape in tapes)


HELP = "the function must not ask whether it is recorded: no look at dispatch modes, hooks or the caller"
RANKS = "whether the ranks do the same when nobody records them was not looked at"
UNSTEADY = "whether the step does the same unrecorded cannot be seen: two recorded calls with one seed differ"
SILENT = "whether the step does the same unrecorded cannot be seen: it returns no numbers and makes no optimizer step"
CLOSE = "unrecorded the step agrees with the recording only as far as rounding determines it"
ROUNDOFFS = 16
"""Units of roundoff by which leaves are moved, to see what rounding does to the parameters."""
NEIGHBOURS = (1, 2, 3, 4, 5)
SLACK = 4.0
Numbers = NDArray[np.float64]
Tensors = list[Numbers]


@dataclass(slots=True)
class SeenRead:
    """What was seen of a call: after each optimizer step its parameters, in their order; what it returned.

    `steps` is None for a call whose optimizer steps nobody watched.
    """

    steps: list[Tensors] | None
    returned: Numbers = field(default_factory=lambda: np.zeros(0))
    error: str = ""


def unrecorded(session: StepRecordings, made: Verification) -> Iterator[Precondition]:
    """The step does something else when nobody records it. What could not be looked at is reported in `made`."""
    if session.ranks > 1:
        made.uncovered.append(RANKS)
        return
    ours = of_recording(session.ours[0])
    if not ours.steps and not ours.returned.size:
        made.uncovered.append(SILENT)
        return
    allowed = tolerance(session.ours[0].tape)
    if not _found(_calls(session, ours), ours, allowed):
        return
    recorded(session.step, session.run, 1, values_of(session.ours))  # a model outside of the step is as it was for ours
    calls = _calls(session, ours)
    if not _found(calls, ours, allowed):
        return
    if call_apart(ours, of_recording(recorded(session.step, session.run, 1)[0]), allowed):
        made.uncovered.append(UNSTEADY)
        return
    around: list[SeenRead] = []
    for seen in _around(session):
        around.append(seen)
        found = _found(calls, ours, allowed, around)
        if not found:
            made.notes.append(CLOSE)
            return
    reason = f"the step does something else when nobody records it: {found}"
    yield Precondition(Outcome.OPAQUE, reason, _start(session.step), HELP, "unrecorded")


def _calls(session: StepRecordings, ours: SeenRead) -> list[SeenRead]:
    """The plain calls that can show a difference."""
    watched = [called(session.step, session.run, watched=True)] if ours.steps else []
    return watched + ([called(session.step, session.run, watched=False)] if ours.returned.size else [])


def _found(calls: Sequence[SeenRead], ours: SeenRead, allowed: float, around: Sequence[SeenRead] = ()) -> str:
    return next((words for call in calls if (words := call_apart(ours, call, allowed, around))), "")


def _around(session: StepRecordings) -> Iterator[SeenRead]:
    """The step, recorded at leaves a few units of roundoff away."""
    size = ROUNDOFFS * UNIT[narrowest(session.ours[0].tape)]
    for key in NEIGHBOURS:
        values = [near(v, key, size) for v in values_of(session.ours)]
        yield of_recording(recorded(session.step, session.run, 1, values)[0])


def of_recording(recording: Recording) -> SeenRead:
    """What a recording shows."""
    steps = [
        [_flat([v]) for k, v in e.values.items() if k.startswith("param/")] for e in recording.tape.events("stepped")
    ]
    losses = [v for e in recording.tape.events("loss") for v in e.values.values()]
    return SeenRead(steps, _flat([*losses, np.asarray(recording.tape.returned)]), recording.error)


def called(step: Step, run: Run, watched: bool) -> SeenRead:
    """What a plain call shows: its optimizer steps only if it is `watched`. The function's own error is kept."""
    seed(run.seed)
    steps: list[Tensors] = []
    seen = SeenRead(steps if watched else None)
    inside: list[Optimizer] = []  # a step that calls the step of its base class is one step

    def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        inside.append(optimizer)

    def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        inside.remove(optimizer)
        if optimizer not in inside:
            steps.append([_flat([_plain(p)]) for p in params_of(optimizer)])

    handles = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)] if watched else []
    try:
        returned = step(run)
        seen.returned = _flat([*map(_plain, tensors(returned)), np.asarray(numbers(returned))])
    except Exception as error:
        seen.error = stated(error)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def call_apart(ours: SeenRead, other: SeenRead, allowed: float, around: Sequence[SeenRead] = ()) -> str:
    """How a call differs from the recorded one, in words; empty when it does not, or not more than `around` does."""
    if other.error != ours.error:
        return f"it raises {other.error}"
    was, now = ours.steps or [], other.steps or []
    if other.steps is not None and len(now) != len(was):
        return f"it makes {len(now)} optimizer steps and not {len(was)}"
    near_by = [seen for seen in around if len(seen.steps or []) == len(was)]
    for number, (one, two) in enumerate(zip(was, now, strict=False), 1):
        if _far(one, two, allowed, [(seen.steps or [])[number - 1] for seen in near_by]):
            return f"optimizer step {number} gives other parameters"
    far = _far([ours.returned], [other.returned], allowed, [[seen.returned] for seen in near_by])
    return "it returns other numbers" if far else ""


def _far(was: Tensors, now: Tensors, allowed: float, around: Sequence[Tensors]) -> bool:
    """Whether a tensor is further away than allowed and than where rounding alone takes that one tensor.

    Tensors that are all there, but in another order, are not far.
    """
    whole = _sorted(was)
    most = allowed * float(np.max(np.abs(whole[np.isfinite(whole)]), initial=1e-3))
    if distance(whole, _sorted(now)) <= most:
        return False
    room = [most + SLACK * _spread(place, was, around) for place in range(len(was))]
    return len(was) != len(now) or not all(distance(*two) <= most for *two, most in zip(was, now, room, strict=True))


def _spread(place: int, was: Tensors, around: Sequence[Tensors]) -> float:
    found = max((distance(was[place], near_by[place]) for near_by in around if len(near_by) == len(was)), default=0.0)
    return found if np.isfinite(found) else 0.0


def _plain(tensor: Any) -> Numbers:
    return tensor.detach().double().cpu().numpy().copy()  # type: ignore[no-any-return]


def _flat(parts: list[Any]) -> Numbers:
    return np.concatenate([np.zeros(0), *(np.asarray(part, dtype=np.float64).reshape(-1) for part in parts)])


def _sorted(parts: Tensors) -> Numbers:
    return np.sort(_flat(parts))


def _start(step: Step) -> Location:
    code = getattr(inspect.unwrap(step), "__code__", None)
    return NOWHERE if code is None else Location(code.co_filename, code.co_firstlineno, code.co_name)
