"""Never blind and green: what the tape says must be what the storages hold.

At every event each tracked tensor, evaluated at concrete leaves, is compared with the content that its storage had. Two
kinds of leaves are tried: those of the recorded run itself, and those of a second recording at other values, whose
storages the first tape must predict. A value that flowed past the recorder cannot pass the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gradproof.shadow.interpret import Observation, Reading
from gradproof.shadow.layout import Array
from gradproof.shadow.tape import FLOATS, NOWHERE, Event, Place, Ref, Tape

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


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A tensor whose storage is not what the tape says."""

    name: str
    event: str
    place: Place
    size: float


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
