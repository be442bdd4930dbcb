"""Nouns of gradproof and the one table that turns an outcome into an effect.

No I/O, no solver and no torch are imported here. Every other module speaks in these words.

Sources of the vocabulary: Kani's check statuses, CrossHair's message types, sby's `expect`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

EVIDENCE_SCHEMA = "gradproof-evidence/1"
REPORT_SCHEMA = "gradproof-report/1"
NO_WORKSPACE = "no workspace here: the packaged reference is judged, not your training loop"


class Outcome(StrEnum):
    """What one check established. Only HOLDS and REFUTED are answers."""

    HOLDS = "HOLDS"
    REFUTED = "REFUTED"
    SPURIOUS = "SPURIOUS"
    WEAK = "WEAK"
    VACUOUS = "VACUOUS"
    BOUND_HIT = "BOUND_HIT"
    UNKNOWN = "UNKNOWN"
    TIMEOUT = "TIMEOUT"
    OPAQUE = "OPAQUE"
    OUTSIDE = "OUTSIDE"
    ERROR = "ERROR"
    NOT_RUN = "NOT_RUN"


MEANING: Mapping[Outcome, str] = {
    Outcome.HOLDS: "every checked clause held, on everything inside the stated reach",
    Outcome.REFUTED: "a counterexample was found and it replays on concrete numbers",
    Outcome.SPURIOUS: "a counterexample was found that does not replay on concrete numbers",
    Outcome.WEAK: "the harness let a named mutant or the empty body survive",
    Outcome.VACUOUS: "a cover was never reached, or nothing was checked",
    Outcome.BOUND_HIT: "the exploration ran into a named bound before it was complete",
    Outcome.UNKNOWN: "the solver gave up without an answer",
    Outcome.TIMEOUT: "the time limit passed before an answer came",
    Outcome.OPAQUE: "the recorder lost sight of a value",
    Outcome.OUTSIDE: "the subject does not meet an assumption of the obligation",
    Outcome.ERROR: "the check crashed or returned something that is no answer",
    Outcome.NOT_RUN: "no run of this check stands behind the present text of its claim",
}


class Expect(StrEnum):
    """The expected answer, which lives in the claim."""

    HOLDS = "holds"
    REFUTED = "refuted"


class Effect(StrEnum):
    """What an outcome does to the obligation."""

    DISCHARGED = "DISCHARGED"
    BROKEN = "BROKEN"
    OPEN = "OPEN"


DECISION: Mapping[tuple[Expect, Outcome], Effect] = {
    (Expect.HOLDS, Outcome.HOLDS): Effect.DISCHARGED,
    (Expect.HOLDS, Outcome.REFUTED): Effect.BROKEN,
    (Expect.HOLDS, Outcome.SPURIOUS): Effect.OPEN,
    (Expect.HOLDS, Outcome.WEAK): Effect.BROKEN,
    (Expect.HOLDS, Outcome.VACUOUS): Effect.BROKEN,
    (Expect.HOLDS, Outcome.BOUND_HIT): Effect.OPEN,
    (Expect.HOLDS, Outcome.UNKNOWN): Effect.OPEN,
    (Expect.HOLDS, Outcome.TIMEOUT): Effect.OPEN,
    (Expect.HOLDS, Outcome.OPAQUE): Effect.OPEN,
    (Expect.HOLDS, Outcome.OUTSIDE): Effect.OPEN,
    (Expect.HOLDS, Outcome.ERROR): Effect.OPEN,
    (Expect.HOLDS, Outcome.NOT_RUN): Effect.OPEN,
    (Expect.REFUTED, Outcome.HOLDS): Effect.BROKEN,
    (Expect.REFUTED, Outcome.REFUTED): Effect.DISCHARGED,
    (Expect.REFUTED, Outcome.SPURIOUS): Effect.OPEN,
    (Expect.REFUTED, Outcome.WEAK): Effect.BROKEN,
    (Expect.REFUTED, Outcome.VACUOUS): Effect.BROKEN,
    (Expect.REFUTED, Outcome.BOUND_HIT): Effect.OPEN,
    (Expect.REFUTED, Outcome.UNKNOWN): Effect.OPEN,
    (Expect.REFUTED, Outcome.TIMEOUT): Effect.OPEN,
    (Expect.REFUTED, Outcome.OPAQUE): Effect.OPEN,
    (Expect.REFUTED, Outcome.OUTSIDE): Effect.OPEN,
    (Expect.REFUTED, Outcome.ERROR): Effect.OPEN,
    (Expect.REFUTED, Outcome.NOT_RUN): Effect.OPEN,
}

_missing = {(e, o) for e in Expect for o in Outcome} - set(DECISION)
if _missing or set(MEANING) != set(Outcome):
    raise ImportError(f"the DECISION or MEANING table is not total: {sorted(_missing)}")


class Reach(StrEnum):
    """How far a HOLDS goes."""

    ALL_INPUTS = "all inputs"
    BOUNDED = "bounded"
    SAMPLED = "sampled"


class Layer(StrEnum):
    """Columns of the coverage matrix."""

    SMT = "smt"
    CROSSHAIR = "crosshair"
    STEP = "step"
    CPU = "cpu"
    CUDA = "cuda"


class Kind(StrEnum):
    """Which backend runs a check."""

    STUB = "stub"
    SMT = "smt"
    CROSSHAIR = "crosshair"
    TRACE = "trace"
    TORCH = "torch"
    GATE = "gate"


class Exit(StrEnum):
    """Names of the exit codes; the numbers are in EXIT_CODE."""

    MET = "met"
    BROKEN = "broken"
    USAGE = "usage"
    CRASH = "crash"
    OPEN = "open"
    NOTHING = "nothing"


EXIT_CODE: Mapping[Exit, int] = {
    Exit.MET: 0,
    Exit.BROKEN: 1,
    Exit.USAGE: 2,
    Exit.CRASH: 3,
    Exit.OPEN: 4,
    Exit.NOTHING: 5,
}

EXIT_MEANING: Mapping[Exit, str] = {
    Exit.MET: "the gate is met",
    Exit.BROKEN: "something is refuted, vacuous or weak",
    Exit.USAGE: "the command line or a contract is wrong",
    Exit.CRASH: "a check or gradproof itself crashed",
    Exit.OPEN: "something required is inconclusive, stale or missing",
    Exit.NOTHING: "nothing was selected",
}


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit with a name, a value and the reason why it is that value."""

    name: str
    value: int
    reason: str


@dataclass(frozen=True, slots=True)
class Tolerance:
    """A tolerance of one dtype. `role` is `required`, or `reported` when nothing is gated on it."""

    dtype: str
    value: str
    metric: str
    domain: str = ""
    role: str = "required"


_PLAIN = frozenset({str, int, float, bool, type(None)})


def _copied(value: Any) -> Any:
    """What `dataclasses.asdict` makes of a field, at a tenth of its cost: a check is written out for every digest."""
    if type(value) in _PLAIN or isinstance(value, str):
        return value
    if isinstance(value, Bound):
        return {"name": value.name, "value": value.value, "reason": value.reason}
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)([_copied(item) for item in value])
    return asdict(_Held(value))["value"]


@dataclass(frozen=True, slots=True)
class _Held:
    """Any other value, for `asdict`."""

    value: Any


@dataclass(frozen=True)
class Check:
    """Clause x method x subject x bounds x stubs: the unit that is planned, run and cached.

    `harness` and `subject` are `module:attribute` names inside the workspace. `mutants` are names in the
    workspace's mutant registry. `text` carries the contract clauses that the check speaks about, so that
    a change of the contract's wording or tolerance makes older evidence stale.
    """

    id: str
    kind: Kind
    layer: Layer
    obligations: tuple[str, ...]
    title: str
    harness: str
    subject: str = ""
    expect: Expect = Expect.HOLDS
    strategy: str = ""
    bounds: tuple[Bound, ...] = ()
    stubs: tuple[str, ...] = ()
    mutants: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    text: Mapping[str, Any] = field(default_factory=dict)
    depends: tuple[str, ...] = ()
    time_limit: float = 60.0

    def bound(self, name: str) -> int:
        """Value of the bound called `name`. Raises KeyError when the claim states no such bound."""
        for b in self.bounds:
            if b.name == name:
                return b.value
        raise KeyError(f"check {self.id} states no bound called {name!r}")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON form; `Check.from_json` reads it back."""
        data = {name: _copied(value) for name, value in vars(self).items()}
        data["kind"], data["layer"], data["expect"] = str(self.kind), str(self.layer), str(self.expect)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Check:
        """Inverse of `to_json`. Raises TypeError or ValueError on a wrong shape."""
        d = dict(data)
        d["kind"], d["layer"], d["expect"] = Kind(d["kind"]), Layer(d["layer"]), Expect(d["expect"])
        d["bounds"] = tuple(Bound(**b) for b in d["bounds"])
        for key in ("obligations", "stubs", "mutants", "assumptions", "depends"):
            d[key] = tuple(d[key])
        return cls(**d)

    @property
    def digest(self) -> str:
        """sha256 of the claim's own text (contract clause, subject, harness, stubs, bounds, mutants)."""
        return digest_of(self.to_json())


@dataclass
class Control:
    """A mutant or the empty body, run through the same harness in the same run.

    `outcome` is what the harness said of it; `killed` is true only when it is REFUTED on the clause that
    it was made to break and the counterexample replays.
    """

    name: str
    kind: str
    clause: str
    outcome: Outcome
    killed: bool
    reference: str = ""
    reason: str = ""
    counterexample: dict[str, Any] | None = None
    replays: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0


@dataclass
class Finding:
    """What a backend returns: facts of one run and the outcome that follows from them."""

    outcome: Outcome
    reason: str
    reach: Reach | None = None
    domain: str = ""
    clauses: dict[str, str] = field(default_factory=dict)
    assumptions: list[str] = field(default_factory=list)
    covers: list[dict[str, Any]] = field(default_factory=list)
    controls: list[Control] = field(default_factory=list)
    counterexample: dict[str, Any] | None = None
    replays: list[dict[str, Any]] = field(default_factory=list)
    measurements: list[dict[str, Any]] = field(default_factory=list)
    stats: dict[str, Any] = field(default_factory=dict)


def entry_of(check_id: str) -> str:
    """Id of the contract's own entry, of which a check is one run: X of X@cpu-fp32 and of X/seeded_bug."""
    return check_id.partition("@")[0].partition("/")[0]


def canonical(data: Any) -> str:
    """Canonical JSON: sorted keys, no spaces, no NaN. Raises ValueError on NaN and infinity."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest_of(data: Any) -> str:
    """sha256 in hex of the canonical JSON of `data`."""
    return hashlib.sha256(canonical(data).encode(errors="surrogatepass")).hexdigest()


class GradproofError(Exception):
    """A user's mistake, with a stable code, a place, what was found, what was expected and the mend."""

    def __init__(self, code: str, found: str, expected: str, mend: str, where: str = "") -> None:
        self.code, self.found, self.expected, self.mend, self.where = code, found, expected, mend, where
        super().__init__(self.render())

    def render(self) -> str:
        """One error as four short lines."""
        head = f"{self.where}: {self.code}" if self.where else self.code
        return f"{head}\n  found:    {self.found}\n  expected: {self.expected}\n  mend:     {self.mend}"
