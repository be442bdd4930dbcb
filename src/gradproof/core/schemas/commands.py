"""What commands print as JSON besides documents of their own: the plan, the settings, the result of a selection.

Formats `gradproof-list/1`, `gradproof-config/1` and `gradproof-selection/1`; their JSON Schemas are in `reports/`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from gradproof.core.outcome import EXIT_CODE, Effect, Exit, Expect, Kind, Layer, Outcome, Reach
from gradproof.core.schemas.base import Shape

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


LIST, CONFIG, SELECTION = "gradproof-list/1", "gradproof-config/1", "gradproof-selection/1"
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


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
