"""What commands print as JSON: diagnosis, graph, plan, settings, selections, merges, bounds, certificates, events.

The format of each is a constant beside its class; their JSON Schemas are in `reports/*.schema.json`.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, RootModel, model_validator

from gradproof.core.outcome import EXIT_CODE, Effect, Exit, Expect, Kind, Layer, Outcome, Reach
from gradproof.core.schemas.base import Count, Format, Power, Sha256, Shape, Tally

# -- What `gradproof doctor --json` prints: format `gradproof-doctor/3`, published as `reports/doctor.schema.json`.
DOCTOR = "gradproof-doctor/3"
Text = Annotated[str, Field(min_length=1)]


class SelfTest(Shape):
    """One self-test. `get`: how to get what it tests, empty where it passed; `seconds`: wall clock."""

    name: Literal["solver", "crosshair", "torch", "worker", "check", "cuda"]
    state: Literal["passed", "failed", "absent"]
    said: str
    get: str
    seconds: Annotated[float, Field(ge=0)]


class Shadow(Shape):
    """A name that import finds in the folder. `installed`: where it would find it else, null where it is nowhere."""

    name: Text
    found: Text
    installed: str | None
    distributions: list[str]


class Doctor(Shape):
    """The diagnosis. The exit code is 0 where `warnings` is empty, and 1 where it is not.

    History: 3, with self-tests of a worker and of `check`; 2, with self-tests; 1, the first.
    """

    schema_: Annotated[Literal["gradproof-doctor/3"], Field(alias="schema")]
    folder: Text
    versions: dict[str, str]
    devices: dict[str, str]
    self_tests: list[SelfTest]
    shadows: list[Shadow]
    warnings: list[str]


# -- The shape of `gradproof graph --format json`, format `gradproof-graph/1`; published as reports/graph.schema.json.
State = Literal["DISCHARGED", "BROKEN", "OPEN"]
Standing = Literal["DISCHARGED", "BROKEN", "OPEN", "ABSENT"]


class Node(Shape):
    """One check: how it is expected to end, how it ended, and the checks that it rests on."""

    id: str
    layer: Literal["smt", "crosshair", "step", "cpu", "cuda"]
    required: bool
    expect: Literal["holds", "refuted"]
    outcome: str
    state: State
    depends_on: list[str]


class Clause(Shape):
    """One obligation and the checks that speak of it."""

    id: str
    property: str
    state: State
    checks: list[Node]


class Dependency(Shape):
    """A contract that another one builds on; ABSENT where there is none of that id."""

    id: str
    state: Standing


class Part(Shape):
    """One contract. `others`: checks that speak of no obligation. `path`: where its file lies."""

    id: str
    version: str
    path: str
    state: State
    says: str
    depends_on: list[Dependency]
    obligations: list[Clause]
    others: list[Node]


class Graph(Shape):
    """Contracts, those that nothing builds on first, on the evidence at hand. History: 1, the first."""

    document: Literal["gradproof-graph/1"] = Field(alias="schema")
    profile: str
    contracts: list[Part]


# -- The plan, the settings, the result of a selection.
LIST, CONFIG, SELECTION = "gradproof-list/1", "gradproof-config/1", "gradproof-selection/1"


class BoundShape(Shape):
    """A limit with the reason why it is that value."""

    name: Text
    value: int
    reason: Text


class PlannedShape(Shape):
    """A check as it is planned. `digest`: sha256 of all the rest; `time_limit` in seconds; `text`: the clauses."""

    id: Text
    kind: Kind
    layer: Layer
    obligations: list[Text]
    title: str
    harness: str
    subject: str
    expect: Expect
    strategy: str
    bounds: list[BoundShape]
    stubs: list[Text]
    mutants: list[Text]
    assumptions: list[Text]
    params: dict[str, Any]
    text: dict[str, Any]
    depends: list[Text]
    time_limit: Annotated[float, Field(gt=0)]
    digest: Sha256


class Listing(Shape):
    """The planned checks of `gradproof list --format json`. History: 1, the first."""

    document: Literal["gradproof-list/1"] = Field(alias="schema")
    checks: Annotated[list[PlannedShape], Field(min_length=1)]


class SettingShape(Shape):
    """One setting, demand or waiver. `source`: command line, environment, a place in a file, or default."""

    name: Text
    value: int | float | str | None
    source: Text


class Config(Shape):
    """Every setting with its source, of `gradproof config --json`. History: 1, the first."""

    document: Literal["gradproof-config/1"] = Field(alias="schema")
    settings: Annotated[list[SettingShape], Field(min_length=1)]


class RulingShape(Shape):
    """What was established of a check. `cached`: on evidence that was at hand; `evidence`: its file."""

    id: Text
    outcome: Outcome
    effect: Effect
    reason: str
    reach: Reach | None
    cached: bool
    evidence: str | None


class Selection(Shape):
    """The result of a selection of checks, or of a shard of them: it says nothing about the gate.

    Printed by `gradproof prove --json` and `gradproof run --json`. `shard` is absent where there is none, and
    `warning` but where no workspace was, and the packaged reference was judged.
    History: 1, the first.
    """

    document: Literal["gradproof-selection/1"] = Field(alias="schema")
    exit: Exit
    code: Annotated[int, Field(ge=0, le=5)]
    shard: Annotated[str, Field(pattern=r"^[1-9][0-9]*/[1-9][0-9]*$")] | None = None
    warning: Text | None = None
    reasons: list[str]
    checks: list[RulingShape]

    @model_validator(mode="after")
    def _consistent(self) -> Selection:
        if self.code != EXIT_CODE[self.exit]:
            raise ValueError(f"the exit {self.exit} has the code {EXIT_CODE[self.exit]}, not {self.code}")
        bad = [row.id for row in self.checks if row.effect is not Effect.DISCHARGED]
        if self.exit is Exit.MET and (bad or not self.checks):
            raise ValueError(f"it is called met, and not every check is discharged: {', '.join(bad[:3]) or 'none ran'}")
        return self


# -- What `gradproof merge --json` prints: format `gradproof-merge/1`, published as `reports/merge.schema.json`.
MERGE = "gradproof-merge/1"


class MergedShape(Shape):
    """An evidence file that counts: its check, what it says by the audit, and where it was read."""

    check: Text
    outcome: Outcome
    path: Text


class RefusedShape(Shape):
    """An evidence file that would not be believed here, and why."""

    path: Text
    reason: Text


class Merge(Shape):
    """What became of every evidence file of the folders that were named.

    `taken` came from them, `kept` was in the store and stays, `refused` would not be believed, `strange` is of no
    planned check, `missing` are checks of which everything was refused. The exit is nothing where there was no file,
    open where a check is missing, and otherwise met: of the gate it says nothing. History: 1, the first.
    """

    document: Literal["gradproof-merge/1"] = Field(alias="schema")
    exit: Literal["met", "open", "nothing"]
    code: Literal[0, 4, 5]
    taken: list[MergedShape]
    kept: list[MergedShape]
    refused: list[RefusedShape]
    strange: list[Text]
    missing: list[Text]

    @model_validator(mode="after")
    def _consistent(self) -> Merge:
        found = self.taken or self.kept or self.refused or self.strange
        wanted = "nothing" if not found else "open" if self.missing else "met"
        if self.exit != wanted or self.code != EXIT_CODE[Exit(wanted)]:
            raise ValueError(f"the exit is {self.exit} ({self.code}), and the files make it {wanted}")
        counted = [row.check for row in (*self.taken, *self.kept)]
        if len(set(counted)) != len(counted) or set(counted) & set(self.missing):
            raise ValueError("a check has one file that counts, or is missing")
        return self


# -- What `gradproof bound --json` prints, also with --thresholds, and what `--certificate` writes: version 2 of a
# certificate, whose checker is `gradproof.rounding.farkas`. Rationals are text: p or p/q.
BOUND, THRESHOLDS, CERTIFICATE = "gradproof-bound/1", "gradproof-thresholds/1", "gradproof-certificate/2"
Rational = Annotated[str, Field(pattern=r"^-?[0-9]+(/[1-9][0-9]*)?$")]
Hex = Annotated[str, Field(pattern=r"^[0-9a-f]+$")]
RowKind = Literal[
    "input", "constant", "exact", "round", "shift", "fits", "widen", "quotient", "joint", "pair", "residual", "ordered"
]
Terms = list[tuple[Rational, Tally]]
Value = Annotated[str, Field(pattern=r"^([0-9a-f]{4}|[0-9a-f]{8}|-?[0-9]+(/[1-9][0-9]*)?)$")]


class SettingOfBound(Shape):
    """What was asked: `n` gradients of |g| <= magnitude in a buffer; `inputs` null where they are not rounded first."""

    n: Count
    buffer: Format
    inputs: Format | None
    magnitude: Rational
    scale: Text
    order: Text
    weights: list[Rational]


class NormShape(Shape):
    """The Euclidean norm over so many elements."""

    elements: Count
    bound: Rational
    attained: Rational


class ReplayShape(Shape):
    """What torch's kernels made of the input: the exact error, beside that of the model of rounding."""

    device: Literal["cpu", "cuda"]
    torch: Text
    error: Rational
    model: Rational


class BoundDocument(Shape):
    """The error that is proved for every input, and one that an input attains, in units of the gradient.

    `witness`: that input, as bit patterns of the buffer's format where it has any. `certificate`: the sha256 of it,
    null where there is none. `outcome`: by the tolerance that was given, null without one. `norm` and `replay` are
    absent where they were not asked for. History: 1, the first.
    """

    document: Literal["gradproof-bound/1"] = Field(alias="schema")
    setting: SettingOfBound
    bound: Rational
    bound_float: float
    attained: Rational
    attained_float: float
    ratio: float | None
    witness: list[Value]
    contracts: list[Text]
    certificate: Sha256 | None
    assumes: list[Text]
    outcome: Literal["HOLDS", "REFUTED", "UNKNOWN"] | None
    norm: NormShape | None = None
    replay: ReplayShape | None = None

    @model_validator(mode="after")
    def _consistent(self) -> BoundDocument:
        for name, row in (("it", self), ("the norm", self.norm)):
            if row is not None and Fraction(row.attained) > Fraction(row.bound):
                raise ValueError(f"{name} is attained above its bound")
        if len(self.witness) != self.setting.n:
            raise ValueError(f"the witness has {len(self.witness)} gradients, not {self.setting.n}")
        return self


class Thresholds(Shape):
    """Over N = 2^k: the largest N within the tolerance, the first that is undecided, the first beyond it.

    Null where there is none up to the largest N that was asked. History: 1, the first.
    """

    document: Literal["gradproof-thresholds/1"] = Field(alias="schema")
    true: Power | None = Field(alias="true up to")
    undecided: Power | None = Field(alias="undecided from")
    false: Power | None = Field(alias="false from")

    @model_validator(mode="after")
    def _consistent(self) -> Thresholds:
        below = max(self.true or 0, self.undecided or 0)
        if self.false is not None and self.false <= below:
            raise ValueError(f"it is called false from {self.false}, and {below} is larger")
        return self


class Case(Shape):
    """The bound is for the case that the exact result of this row is at most so many units."""

    row: Tally
    edge: Hex


class Certificate(Shape):
    """The rows of a program, and the multipliers that prove its bound; what is shaped so may still prove nothing.

    A row is its kind, its format (empty over the reals), its terms (coefficient, earlier row), its reach and its error,
    both in units of 2^-unit. The last row is the result. `case` is absent where the bound is for every case.
    History: 2, hexadecimal units.
    """

    version: Literal[2]
    unit: Tally
    bound: Rational
    rows: Annotated[list[tuple[RowKind, Format | Literal[""], Terms, Hex, Hex]], Field(min_length=1)]
    multipliers: list[Rational]
    case: Case | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Certificate:
        if len(self.multipliers) != len(self.rows):
            raise ValueError(f"{len(self.multipliers)} multipliers for {len(self.rows)} rows")
        if any(earlier >= place for place, row in enumerate(self.rows) for _, earlier in row[2]):
            raise ValueError("a term of a row is not an earlier row")
        if self.case is not None and self.case.row >= len(self.rows):
            raise ValueError(f"the case is about row {self.case.row} of {len(self.rows)}")
        return self


# -- A line of `--format ndjson`.
EVENTS = "gradproof-events/1"


class Begin(Shape):
    """The first line of every stream. `warning` is there where no workspace was: the packaged reference is judged."""

    event: Literal["begin"]
    document: Literal["gradproof-events/1"] = Field(alias="schema")
    warning: Text | None = None


class Started(Shape):
    """A check began. `done` of `total` checks were finished before."""

    event: Literal["started"]
    done: Tally
    total: Tally
    check: Text
    kind: Kind
    layer: Layer


class Finished(Shape):
    """A check ended, as the audit has it. `seconds`: wall clock of its worker."""

    event: Literal["finished"]
    done: Tally
    total: Tally
    check: Text
    kind: Kind
    layer: Layer
    outcome: Outcome
    effect: Effect
    reason: str
    seconds: Annotated[float, Field(ge=0)]


class VerdictEvent(Shape):
    """The verdict of one contract."""

    event: Literal["verdict"]
    contract: Text
    run_state: Literal["complete", "partial", "running"]
    exit: Exit
    code: Annotated[int, Field(ge=0, le=5)]
    met: bool
    reasons: list[str]

    @model_validator(mode="after")
    def _consistent(self) -> VerdictEvent:
        if self.code != EXIT_CODE[self.exit] or self.met is not (self.exit is Exit.MET):
            raise ValueError(f"exit {self.exit}, code {self.code} and met {self.met} do not agree")
        return self


class End(Shape):
    """The last line of a stream that is whole."""

    event: Literal["end"]


class Event(RootModel[Annotated[Begin | Started | Finished | VerdictEvent | End, Field(discriminator="event")]]):
    """One line of the stream: begin, then each check as it starts and ends, a verdict for each contract, and end.

    A stream without its last event is not whole. History: 1, the first.
    """

    model_config = ConfigDict(strict=True, frozen=True)
