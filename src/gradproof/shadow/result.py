"""What a verification of a real step says: one result an obligation, and everything that it rests on.

A result is HOLDS only when every comparison that it needs was made and succeeded. `worst` gives the outcome of the
whole: a refutation before a lost sight, a lost sight before an unknown, and so on; nothing decided is NOT_RUN.
`--allow-undecided` excuses an undecided obligation from the exit, never from the outcome.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from fractions import Fraction
from itertools import groupby
from numbers import Integral
from pathlib import Path
from typing import Any

from gradproof import __version__
from gradproof.core.outcome import DECISION, EXIT_CODE, Effect, Exit, Expect, Outcome
from gradproof.shadow.locations import Location

ROWS: dict[str, tuple[str, str]] = {
    "GA-DATA-001": ("every sample once", "the window's micro-batches are the samples of the effective batch, in order"),
    "GA-EQ-001": (
        "the gradient of the full batch",
        "the gradient handed to the optimizer is the gradient of the full batch",
    ),
    "GA-INV-001": ("the loss of the full batch", "the window's loss is the loss of the full batch"),
    "GA-INV-002": ("no stale gradient", "gradients are zeroed once between two windows"),
    "GA-INV-003": ("one step a window", "one optimizer step, and at most one schedule step, a window"),
    "GA-INV-004": ("accumulation in fp32 or wider", "gradients are accumulated in fp32 or wider"),
    "GA-INV-005": ("one clip, of the whole gradient", "the gradient is clipped once, after the last micro-batch"),
    "GA-SYNC-001": ("one gradient on all ranks", "every rank applies the gradient of the samples of all ranks"),
    "GA-TOK-001": ("every valid token weighs the same", "every valid token of a window weighs the same"),
}
"""Obligations that a recorded step can discharge, in the order of the report: name beside the id, and what it says."""
OBLIGATIONS = {obligation: words for obligation, (_, words) in ROWS.items()}
NAMES = {obligation: name for obligation, (name, _) in ROWS.items()}
OF_EVENTS = OBLIGATIONS.keys() - {"GA-INV-001", "GA-INV-004"}
"""What a window of other events may break."""
WHERE_DUE = ("GA-SYNC-001", "GA-TOK-001")
"""Those that only some steps have: of several ranks, or with a loss that counts tokens."""

SEVERITY = (
    Outcome.REFUTED, Outcome.ERROR, Outcome.OPAQUE, Outcome.OUTSIDE, Outcome.SPURIOUS, Outcome.WEAK, Outcome.VACUOUS,
    Outcome.BOUND_HIT, Outcome.TIMEOUT, Outcome.UNKNOWN, Outcome.NOT_RUN, Outcome.HOLDS,
)  # fmt: skip

ALL_DATA = "all real weights, data and draws, at these shapes"
RECORDED = "the recorded run"
NO_LOSS = "no-reported-loss"
"""The code of a GA-INV-001 of a run in which no reported loss was seen: there is nothing that could hold or not."""
ON_PATH = {ALL_DATA: "all real weights, data and draws that take the recorded path, at these shapes"}
"""What is left of a reach where the step's path depends on numbers."""
SHOWN = 3
"""Lines that a reach names."""
FUNCTION = (
    "put the training into a function of one argument, a Run that has the numbers to train with, such as "
    "run.accum_steps: gradproof check compares it with the full batch"
)
DIVIDE = "divide each loss by the number of micro-batches of its own window"
"""What to do where one run does not decide."""


def named(obligation: str) -> str:
    """The id of an obligation and its name: `GA-INV-002, no stale gradient`; an id without a name is alone."""
    return f"{obligation}, {NAMES[obligation]}" if obligation in NAMES else obligation


def on_path(reach: str, lines: Sequence[str]) -> str:
    """A reach where values were read at these lines (`file:line`)."""
    return f"{ON_PATH[reach]}{values_read(lines)}" if lines and reach in ON_PATH else reach


def spans(numbers: Iterable[int], total: str = "") -> str:
    """Windows of a run, counted from 1, in words: `windows 1 to 3, 7 of 24`."""
    apart = groupby(enumerate(sorted(set(numbers))), lambda pair: pair[1] - pair[0])
    found = [[number + 1 for _, number in pairs] for _, pairs in apart]
    parts = [f"{one[0]}" if len(one) == 1 else f"{one[0]} to {one[-1]}" for one in found]
    several = len(found) > 1 or any(len(one) > 1 for one in found)
    of = f" of {total}" if total else ""
    return f"window{'s' * several} {', '.join(parts)}{of}" if parts else "no window"


def judged_windows(judged: Collection[int], total: str, drawn: Collection[int], seed: int, rest: str) -> str:
    """The windows that a verification judges, for its first lines. `rest`: what is known of all others."""
    by = f" ({spans(drawn).partition(' ')[2]} drawn by seed {seed})" if drawn else ""
    return f"{spans(judged, total)}{by}; {rest}"


def leave_open(results: Iterable[Result], others: Sequence[tuple[int, int, str]], how: str, help: str) -> None:
    """What windows may break that are like none that is judged does not hold.

    `others`: how many they are, the first of them, and in what they differ. `how`: what was not done to them.
    """
    for count, at, reason in others[:1]:
        more = f" and {count - 1} more like it were" if count > 1 else " was"
        for result in (one for one in results if one.obligation in OF_EVENTS):
            result.doubt(f"window {at + 1}{more} not {how}: it {reason}", help=help)


def values_read(lines: Sequence[str]) -> str:
    """The lines at which values were read, each once, for the end of a reach; empty where there are none."""
    named = list(dict.fromkeys(lines))
    rest = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
    return f" (values read: {', '.join(named[:SHOWN])}{rest})" if named else ""


@dataclass(slots=True)
class Result:
    """One obligation: the outcome, why, where in the user's file, and how to fix it.

    `domain`: whole tensors, events, floats or rounding. `reach`: on what it was established. `details` and
    `counterexample` are plain data (numbers as text where they are exact).
    """

    obligation: str
    outcome: Outcome
    reason: str
    location: Location | None = None
    help: str = ""
    domain: str = ""
    reach: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    counterexample: dict[str, Any] | None = None

    @property
    def applies(self) -> bool:
        """Whether there was something to judge."""
        return self.details.get("code") != NO_LOSS

    def doubt(
        self, reason: str, at: Location | None = None, help: str = "", outcome: Outcome = Outcome.UNKNOWN
    ) -> None:
        """What held is not decided; another outcome stays as it is."""
        if self.outcome is Outcome.HOLDS:
            self.outcome, self.reason, self.reach, self.help = outcome, reason, "", help or self.help
            self.location = at or self.location


def assuming(laws: Iterable[str], results: Iterable[Result]) -> list[str]:
    """The laws that are registered or sampled, where something holds that may rest on them."""
    return sorted(laws) if any(result.outcome is Outcome.HOLDS for result in results) else []


@dataclass(slots=True)
class Verification:
    """A whole verification, as plain data but for the outcomes and places.

    `allow_undecided` are the obligations that the user lets stand undecided: they do not keep the exit from MET.
    `windows`: those that are judged, in words. `taken`: what this run does not show and the judge took for so, as
    `the 4 at train.py:9 is taken for N`; the first lines say both.
    """

    subject: str
    config: dict[str, Any]
    results: list[Result] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    weights: list[dict[str, Any]] = field(default_factory=list)
    rounding: list[dict[str, Any]] = field(default_factory=list)
    windows: str = ""
    taken: list[str] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    uncovered: list[str] = field(default_factory=list)
    havocked: list[str] = field(default_factory=list)
    operators: dict[str, int] = field(default_factory=dict)
    shapes: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    monitoring: dict[str, Any] = field(default_factory=dict)
    allow_undecided: list[str] = field(default_factory=list)

    @property
    def outcome(self) -> Outcome:
        """The worst of the results that apply, and of a script that failed."""
        return worst([*self._failed, *(result.outcome for result in self.results if result.applies)])

    @property
    def exit(self) -> Exit:
        """How the command ends: by the worst result that is not allowed; where every result is allowed it is OPEN."""
        kept = [r.outcome for r in self.results if r.applies and r not in self.allowed]
        return ending(worst([*self._failed, *kept]))

    @property
    def _failed(self) -> list[Outcome]:
        return [Outcome.ERROR] if self.config.get("failed") else []

    @property
    def allowed(self) -> list[Result]:
        """The undecided results that `allow_undecided` names. What is refuted, or crashed, is never among them."""
        return [r for r in self.results if r.obligation in self.allow_undecided and ending(r.outcome) is Exit.OPEN]

    @property
    def code(self) -> int:
        """The exit code."""
        return EXIT_CODE[self.exit]

    def result(self, obligation: str) -> Result:
        """The result of an obligation. Raises KeyError when it was not judged."""
        return {found.obligation: found for found in reversed(self.results)}[obligation]


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """The most severe outcome; of none it is NOT_RUN."""
    return min(outcomes, key=SEVERITY.index, default=Outcome.NOT_RUN)


def ending(outcome: Outcome) -> Exit:
    """Exit of a single outcome. Only numbers that differ break: a gradient that was made of no data shows nothing."""
    return {Outcome.HOLDS: Exit.MET, Outcome.REFUTED: Exit.BROKEN, Outcome.ERROR: Exit.CRASH}.get(outcome, Exit.OPEN)


def step_effect(outcome: Outcome) -> Effect:
    """What an outcome does to a claim that holds, as its exit says: what shows nothing leaves it open."""
    return Effect.OPEN if ending(outcome) is Exit.OPEN else DECISION[Expect.HOLDS, outcome]


if set(SEVERITY) != set(Outcome):
    raise ImportError("SEVERITY does not order every outcome")


# -- A Verification as JSON and back: format `gradproof-step/2`, described by reports/step.schema.json.
STEP_SCHEMA = "gradproof-step/2"


def plain(value: Any, where: str = "verification") -> Any:
    """JSON form of plain data, with NumPy numbers and arrays among it. Raises ValueError with the place of the rest."""
    if isinstance(value, Enum):
        return plain(value.value, where)
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Fraction | Path | Location):
        return str(value)
    numpy = sys.modules.get("numpy")  # who made such a value has loaded it
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
        return plain(value.tolist(), where)
    if isinstance(value, Mapping):
        return {_key(k, where): plain(v, f"{where}.{k}") for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v, f"{where}[{i}]") for i, v in enumerate(value)]
    if isinstance(value, set | frozenset):
        return sorted((plain(v, where) for v in value), key=str)
    if isinstance(value, Result):
        location = None if value.location is None else asdict(value.location)
        return plain({f.name: getattr(value, f.name) for f in fields(value)} | {"location": location}, where)
    raise ValueError(f"{where} is a {type(value).__module__}.{type(value).__name__}, which is no plain data")


def _key(key: Any, where: str) -> str:
    if isinstance(key, str | Integral | Fraction | tuple):
        return str(key.value if isinstance(key, Enum) else key)
    raise ValueError(f"{where} has a key of type {type(key).__name__}")


def to_json(verification: Verification) -> dict[str, Any]:
    """The JSON form. Raises ValueError where something is no plain data."""
    made = {f.name: plain(getattr(verification, f.name), f.name) for f in fields(verification)}
    verdict = {"outcome": str(verification.outcome), "exit": str(verification.exit), "code": verification.code}
    return {"schema": STEP_SCHEMA, "gradproof": __version__, **verdict, **made}


def from_json(data: Any) -> Verification:
    """Inverse of `to_json`. Raises ValueError for what that does not make: another shape, or another verdict."""
    from pydantic import TypeAdapter  # only who reads an answer waits for it

    if not isinstance(data, dict):
        raise ValueError(f"it is a {type(data).__name__}")
    own = {f.name: data[f.name] for f in fields(Verification) if f.name in data}
    made = TypeAdapter(Verification).validate_python(own)  # `validate_json` takes no lone surrogate
    if to_json(made) | {"gradproof": data.get("gradproof")} != data:
        raise ValueError("it has another schema or other keys, or states another verdict than its results say")
    return made
