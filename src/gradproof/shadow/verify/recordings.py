"""The recordings that a verification rests on, and whether the step is one that can be verified at all.

| recording | leaves |
|---|---|
| `ours` | the N micro-batches, at the values that the user's function makes |
| `full` | the full batch, at the values of `ours` |
| `moved` | the N micro-batches again, every leaf at another value |
| `elsewheres` | both runs at further values, made when a refutation does not show at those of `ours` |

`moved` must be the tape of `ours` again: the same operators, constants and Python numbers. Where it is not, the step
took another path (a branch on data), or a value flowed past the recorder, or the step is not deterministic.
Each recording is a list, one item a rank.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from gradproof.core.outcome import Outcome
from gradproof.shadow.domains.interpreter import Havoc, Interpreter, Observation, Reading, read_ranks
from gradproof.shadow.domains.programs import Floats
from gradproof.shadow.record.ranks import each_rank
from gradproof.shadow.record.run import Recording, Run, Step, record, seed
from gradproof.shadow.request import function_of, load
from gradproof.shadow.tape import (
    FLOATS,
    NOWHERE,
    Array,
    Blind,
    Event,
    Injection,
    Key,
    Location,
    Ref,
    Source,
    Tape,
    renamings,
    streams,
)
from gradproof.shadow.verify.compare import (
    ReadWindow,
    TapeDifference,
    contents_apart,
    differences,
    moved,
    near,
    unmatched,
    windows,
)

# -- Never blind and green: what the tape says must be what the storages hold.
RANKS_WITHIN = 300.0  # seconds for one recording on several ranks
UNIT: Mapping[str, float] = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "tf32": 2.0**-11,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
}
ROUNDINGS = 4096
"""Roundings of the narrowest format that a disagreement must exceed, relative to the event's largest number."""
LOOSEST = 0.25
AGAIN = (11, 12, 13)
"""Keys of further leaves, where rounding may be why the storages differ at the first ones."""
ROUNDINGS_AT_A_JUMP = 4
NEIGHBOURS = 8


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A tensor whose storage is not what the tape says."""

    name: str
    event: str
    place: Location
    size: float

    @property
    def at(self) -> tuple[str, str, Location]:
        """Which number it is."""
        return self.name, self.event, self.place


def narrowest(tape: Tape) -> str:
    """The floating-point format of the tape with the largest unit roundoff."""
    found = {ref.dtype for entry in tape.entries() for ref in entry.writes if ref.dtype in FLOATS}
    return max(found or {"float32"}, key=lambda d: UNIT[d])


def tolerance(tape: Tape) -> float:
    """How far an evaluation in float64 and the machine may be apart, relative to the largest number of an event."""
    return min(LOOSEST, ROUNDINGS * UNIT[narrowest(tape)])


def disagreements(reading: Reading, tape: Tape, allowed: float) -> list[Disagreement]:
    """Compare what a reading in float64 says with the contents that a tape recorded at the same events."""
    actual = [event for event in tape.events() if event.refs]
    if len(actual) != len(reading.observations):
        place = actual[-1].place if actual else NOWHERE
        return [Disagreement("the sequence of events", "end", place, float("inf"))]
    pairs = zip(reading.observations, actual, strict=True)
    return [found for seen, event in pairs for found in _event(seen, event, allowed)]


def _event(seen: Observation, event: Event, allowed: float) -> list[Disagreement]:
    scale = max((_largest(v) for v in event.values.values()), default=0.0)
    found = []
    for name, value in seen.values.items():
        ref = event.refs.get(name)
        if not isinstance(ref, Ref) or name not in event.values or not hasattr(value, "parts"):
            continue
        said, held = np.asarray(value.parts[0], dtype=np.float64), np.asarray(event.values[name], dtype=np.float64)
        size = distance(said, held)
        if not size <= allowed * max(scale, 1e-3):
            found.append(Disagreement(name, event.kind, event.place, size))
    return found


def distance(said: Array, held: Array) -> float:
    """Largest difference; infinities and NaN must be alike, or the distance is infinite."""
    if said.shape != held.shape:
        return float("inf")
    finite = np.isfinite(said) & np.isfinite(held)
    if not np.array_equal(said[~finite], held[~finite], equal_nan=True):
        return float("inf")
    return float(np.max(np.abs(said[finite] - held[finite]), initial=0.0))


def _largest(values: Array) -> float:
    array = np.asarray(values, dtype=np.float64)
    return float(np.max(np.abs(array[np.isfinite(array)]), initial=0.0))


BATCH_NORMS = ("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm", "miopen_batch_norm", "batch_norm")
SCALES = (1.0, 0.05)
NEAR = (2.0**-6, 2.0**-12)
"""Other values that are tried: of another size (half precision overflows soon), then near the run's own."""
REPLAYS = ((4, 0.25), (5, 0.05), (6, 4.0), (7, 64.0))
"""Key and scale of further values at which a refutation is replayed before it is called spurious."""
NOT_FATAL = frozenset({"exported"})
Values = Mapping[Key, Array]


@dataclass(slots=True)
class Precondition:
    """Why nothing can be said about the numbers of the step: an outcome that is no answer, the place and the help."""

    outcome: Outcome
    reason: str
    place: Location
    help: str
    code: str


@dataclass(slots=True)
class StepRecordings:
    """The recordings of one step."""

    step: Step
    run: Run
    ranks: int
    ours: list[Recording]
    full: list[Recording]
    moved: list[Recording] = field(default_factory=list)
    away: list[list[Recording]] = field(default_factory=list)
    havoc: Havoc | None = None
    operations: int = 150_000
    seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def make(cls, step: Step, run: Run, ranks: int = 1) -> StepRecordings:
        """Record the N-run, the full batch at the same values, and the N-run at other values."""
        began = time.monotonic()
        ours = recorded(step, run, ranks)
        full = recorded(step, run.full_batch(), ranks, values_of(ours))
        session = cls(step, run, ranks, ours, full)
        if any(r.tape.shared for r in (*ours, *full)):
            session = session.by_callers() or session
        if not any(r.error for r in (*ours, *full)):
            session.moved = session.move()
        session.seconds["recording"] = time.monotonic() - began
        return session

    def by_callers(self) -> StepRecordings | None:
        """The step with one source of data for every caller of a line that several call, where the data match so."""
        if any(r.error for r in (*self.ours, *self.full)):
            return None
        run = replace(self.run, by_callers=True)
        ours = recorded(self.step, run, self.ranks)
        session = StepRecordings(
            self.step, run, self.ranks, ours, recorded(self.step, run.full_batch(), self.ranks, values_of(ours))
        )
        wrong = any(r.error for r in (*session.ours, *session.full)) or data_apart(session)
        return None if wrong else session

    def move(self) -> list[Recording]:
        """The N-run at other values, on the same path, at which no number overflows that did not before.

        None (an empty list) where no such values were found. Recordings of other paths are kept in `away`.
        """
        was_finite = all(finite(r.tape) for r in self.ours)
        tries = [self.elsewhere(scale=scale) for scale in SCALES]
        tries += [[near(values, 1, size) for values in values_of(self.ours)] for size in NEAR]
        for values in tries:
            made = recorded(self.step, self.run, self.ranks, values)
            if any(r.error for r in made) or (was_finite and not all(finite(r.tape) for r in made)):
                continue
            if same_path(self.ours, made):
                return made
            self.away.append(made)
        return []

    def elsewhere(self, key: int = 1, scale: float = 1.0) -> list[Values]:
        """Other values for the leaves of every rank; what is the same number on two ranks stays so."""
        return [moved(values, key, scale) for values in values_of(self.ours)]

    def elsewheres(self) -> Iterator[tuple[str, list[Recording], list[Recording]]]:
        """Both runs at other values: those of `moved`, then smaller and larger ones, at which a clip may not bind."""
        full = self.run.full_batch()
        yield "other values", self.moved, recorded(self.step, full, self.ranks, values_of(self.moved))
        for key, scale in REPLAYS:
            ours = recorded(self.step, self.run, self.ranks, self.elsewhere(key, scale))
            if not any(r.error or not finite(r.tape) for r in ours):
                yield f"values {scale:g} times as large", ours, recorded(self.step, full, self.ranks, values_of(ours))

    def tapes(self) -> Iterator[tuple[str, Tape]]:
        """The tapes that exist, with their names."""
        for name, recordings in (
            ("the run with micro-batches", self.ours),
            ("the full batch's run", self.full),
            ("the run at other values", self.moved),
        ):
            for rank, recording in enumerate(recordings):
                yield f"{name}, rank {rank}" if self.ranks > 1 else name, recording.tape

    def read(
        self,
        domain: Any,
        recordings: Sequence[Recording],
        wanted: Callable[[Event], bool],
        follow: Sequence[Sequence[Event]] = (),
    ) -> list[Reading]:
        """The recordings of all ranks in a domain. Raises NoRow and Beyond."""
        tapes = [r.tape for r in recordings]
        if len(tapes) == 1:
            return [Interpreter(domain, havoc=self.havoc, follow=follow[0] if follow else ()).run(tapes[0], wanted)]
        return read_ranks(domain, tapes, wanted, self.havoc, follow)


def recorded(
    step: Step, run: Run, ranks: int, values: Sequence[Values] | None = None, clean: str = ""
) -> list[Recording]:
    """Record one call of the function, in this process or in one process a rank. `clean` as in `run.record`."""
    if ranks == 1:
        return [record(step, run, None if values is None else Injection(values[0]), clean)]
    step = inspect.unwrap(step)
    file, name = inspect.getsourcefile(step) or "", getattr(step, "__name__", "")
    jobs = [(file, name, run, None if values is None else values[rank]) for rank in range(ranks)]
    return each_rank(f"{__name__}:recorded_rank", jobs, RANKS_WITHIN)


def recorded_rank(job: tuple[str, str, Run, Values | None]) -> Recording:
    """One rank's recording of the function `name` of a file, without what it returned. Leaves may be injected."""
    file, name, run, values = job
    function = function_of(load(Path(file)), name, file)
    made = record(function, run, None if values is None else Injection(values))
    return Recording(replace(made.tape, returned=None), made.error, made.raised)


def finite(tape: Tape) -> bool:
    """Whether everything that the events saw is a finite number."""
    return all(bool(np.isfinite(v).all()) for event in tape.events() for v in event.values.values())


def values_of(recordings: Sequence[Recording]) -> list[Values]:
    """The values of the leaves, rank by rank."""
    return [streams(r.tape) for r in recordings]


def errors(session: StepRecordings) -> Iterator[Precondition]:
    """The user's function ended with an exception: its own, or one that it raises only while it is recorded."""
    pairs = (
        ("with micro-batches", session.run, session.ours),
        ("with the full batch", session.run.full_batch(), session.full),
    )
    for name, run, recordings in pairs:
        for recording in recordings:
            if not recording.error:
                continue
            first = recording.error.splitlines()[0]
            if session.ranks == 1 and runs_alone(session.step, run):
                reason = (
                    f"called {name}, the function raised {first} while it was recorded, and runs without the recorder"
                )
                help = "the recorder cannot follow what this line calls: leave it out of the step, or report it"
                yield Precondition(Outcome.OPAQUE, reason, recording.raised, help, "unrecordable")
                continue
            help = "the function must train with the numbers of `run`; for a whole script use gradproof watch"
            reason = f"called {name}, the function raised {first}"
            yield Precondition(Outcome.ERROR, reason, recording.raised, help, "raised")


def runs_alone(step: Step, run: Run) -> bool:
    """Whether the function comes to its end where nothing records it."""
    seed(run.seed)
    try:
        step(run)
    except Exception:
        return False
    return True


def ignored(session: StepRecordings) -> Iterator[Precondition]:
    """The function did not train with the numbers of its `run`: the two calls cannot be compared."""
    run, (ours, full) = session.run, (session.ours[0], session.full[0])
    if run.accum_steps == 1:
        return
    never = full.never_read()
    mine = _operators(ours.tape)
    alike = bool(mine) and mine == _operators(full.tape)
    if not alike and not (never and (_odd(session) or data_apart(session))):
        return
    found = f"it never read {' and '.join(f'run.{name}' for name in never)}" if never else "both calls did the same"
    reason = f"not decided: the function did not use run ({found}); the full batch must be one micro-batch a window"
    help = "train with run.micro_batch_size, run.accum_steps and run.windows; for a script use gradproof watch"
    place = next((e.place for e in ours.tape.events("backward")), NOWHERE)
    yield Precondition(Outcome.OUTSIDE, reason, place, help, "run-unused")


def _operators(tape: Tape) -> list[tuple[Any, ...]]:
    """The operators of a tape with the shapes that they write."""
    return [(entry.op, *(ref.shape for ref in entry.writes)) for entry in tape.entries()]


def _odd(session: StepRecordings) -> bool:
    """Whether the call with the full batch was not one micro-batch a window, as many windows as were asked for."""
    ours, full = (stepped(r[0].tape) for r in (session.ours, session.full))
    if not ours and not full:
        return False
    asked = session.run.windows + (session.run.tail > 0)
    return len(full) != asked or any(1 < len(b.roots) >= len(a.roots) for a, b in zip(ours, full, strict=False))


def seen(tape: Tape) -> list[Observation]:
    """The events of a tape that have values."""
    return [Observation(e) for e in tape.events() if e.refs]


def stepped(tape: Tape) -> list[ReadWindow]:
    """The windows of a tape that end with a step."""
    return [w for w in windows(seen(tape)) if w.steps]


def blindness(session: StepRecordings) -> Iterator[Precondition]:
    """The recorder said that it lost sight of a value."""
    seen: set[tuple[str, str, str]] = set()
    for name, tape in session.tapes():
        for blind in tape.blind:
            key = (blind.code, blind.what, str(blind.place))
            if key not in seen and blind.code not in NOT_FATAL:
                seen.add(key)
                yield _lost(blind, name, exported(tape) if blind.code == "unseen-write" else None)


def _lost(blind: Blind, name: str, source: Location | None) -> Precondition:
    where = f"seen at {blind.place}, in {name}" if source else f"seen in {name}"
    return Precondition(Outcome.OPAQUE, f"{blind.what} ({where})", source or blind.place, blind.help, blind.code)


def exported(tape: Tape) -> Location | None:
    """The last line at which a tracked tensor was handed to NumPy."""
    for note in reversed(tape.notes):
        place, _, what = note.partition(": .")
        file, _, line = place.rpartition(":")
        if what.startswith(("numpy", "__array__", "data_ptr", "__dlpack__")) and line.isdigit():
            return Location(file, int(line))
    return None


def batch_norm(tape: Tape) -> Location | None:
    """Where a normalisation over the batch was trained, if anywhere."""
    for entry in tape.entries():
        name = entry.op.split(".")[1]
        if name in BATCH_NORMS and not entry.backward and _training(entry.op, entry.args):
            return entry.place
    return None


def _training(op: str, args: tuple[object, ...]) -> bool:
    flags = [a for a in args if isinstance(a, bool)]
    return bool(flags and flags[0]) and "no_training" not in op


def apart(one: Sequence[Recording], other: Sequence[Recording]) -> list[TapeDifference]:
    """Where two recordings of one run part, over all ranks."""
    return [d for a, b in zip(one, other, strict=True) for d in differences(a.tape, b.tape)]


def past_the_recorder(session: StepRecordings) -> Iterator[Precondition]:
    """Nondeterminism, and values that left the tape and came back as constants."""
    found = apart(session.ours, session.moved) if session.moved else []
    if session.moved and not found:
        return
    again = recorded(session.step, session.run, session.ranks, values_of(session.ours))
    unsteady = apart(session.ours, again)
    if unsteady:
        help = "seed every generator from run.seed, so that two calls of the function do the same"
        reason = f"two runs with one seed differ: {unsteady[0].what}"
        yield Precondition(Outcome.OPAQUE, reason, unsteady[0].place, help, "nondeterministic")
    elif found:
        yield flowed(found[0])
    else:
        place = next((d.place for away in session.away for d in apart(session.ours, away)), NOWHERE)
        reason = "at every other value that was tried the step takes another path, so that no flow can be tested"
        yield Precondition(Outcome.OPAQUE, reason, place, "make the branch depend on fewer numbers", "flow-untested")


def flowed(found: TapeDifference) -> Precondition:
    """A value that left the tape and came back."""
    help = "keep the value in torch: what passes through NumPy or Python numbers cannot be followed"
    return Precondition(Outcome.OPAQUE, f"a value flowed past the recorder; {found.what}", found.place, help, "flowed")


def same_path(one: Sequence[Recording], other: Sequence[Recording]) -> bool:
    """Whether the same operators ran; values may have flowed."""
    return all(d.kind == "value" for d in apart(one, other))


def disagreement(session: StepRecordings) -> Iterator[Precondition]:
    """Storages that are not what the tape says, at the run's own leaves and at other ones. Raises NoRow, Beyond."""
    for name, said in (("", session.ours), (" of the full batch", session.full)):
        yield from _in_words(_disagreements(session, said, said), name)
    found: list[Disagreement] = []
    for held in _others(session):
        found = _disagreements(session, session.ours, held)
        if not _at_a_jump(session, found, held):
            break
    yield from _in_words(found, " at other values")


def _others(session: StepRecordings) -> Iterator[list[Recording]]:
    """Recordings of the same path at other values; all but the first are made when they are asked for."""
    if not session.moved or apart(session.ours, session.moved):
        return
    yield session.moved
    for key in AGAIN:
        made = recorded(session.step, session.run, session.ranks, session.elsewhere(key))
        if not any(r.error for r in made) and not apart(session.ours, made):
            yield made


def _disagreements(
    session: StepRecordings, said: list[Recording], held: list[Recording], leaves: dict[Key, Array] | None = None
) -> list[Disagreement]:
    """What `said` computes from the leaves of `held` (or from `leaves`) that the storages of `held` do not hold."""
    if leaves is None and said is not held:
        leaves = leaves_of(said, values_of(held))
    follow = [[e for e in r.tape.events() if e.refs] for r in held]
    readings = session.read(Floats(leaves), said, lambda event: bool(event.refs), follow)
    allowed = max(tolerance(r.tape) for r in said)
    return [d for reading, r in zip(readings, held, strict=True) for d in disagreements(reading, r.tape, allowed)]


def _at_a_jump(session: StepRecordings, found: Sequence[Disagreement], held: list[Recording]) -> bool:
    """Whether a number jumps where leaves move by a few roundings, as behind a ReLU near 0: rounding may be why."""
    size = ROUNDINGS_AT_A_JUMP * max(UNIT[narrowest(r.tape)] for r in held)
    for key in range(1, NEIGHBOURS + 1) if found else ():
        leaves = leaves_of(session.ours, [near(values, key, size) for values in values_of(held)])
        nearby: dict[tuple[str, str, Location], float] = {}
        for one in _disagreements(session, session.ours, held, leaves):
            nearby[one.at] = max(nearby.get(one.at, 0.0), one.size)
        if any(abs(nearby.get(d.at, 0.0) - d.size) > d.size / 2 for d in found):
            return True
    return False


def _in_words(found: Sequence[Disagreement], name: str) -> Iterator[Precondition]:
    for one in found[:1]:
        reason = f"{one.name} at {one.event}{name} is not what its operators give (off by {one.size:.3g})"
        help = "something wrote it that torch did not dispatch, or an operator's row is wrong"
        yield Precondition(Outcome.OPAQUE, reason, one.place, help, "disagreement")


def leaves_of(said: Sequence[Recording], held: Sequence[Values]) -> dict[Key, Array]:
    """The leaves of all ranks of one recording, under the names that another recording's interpretation gives them."""
    names = renamings([r.tape for r in said])
    found: dict[Key, Array] = {}
    for rename, values in zip(names, held, strict=True):
        for (kind, name), stream in values.items():
            found.setdefault((kind, rename(Source(kind, name)).name), stream)
    return found


def data_apart(session: StepRecordings) -> list[str]:
    """Data of which the two runs do not have the same streams, in words."""
    pairs = zip(session.ours, session.full, strict=True)
    return [text for a, b in pairs for text in (*unmatched(a.tape, b.tape), *contents_apart(a.tape, b.tape))]
