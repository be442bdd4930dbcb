"""What commands print as JSON besides documents of their own: the plan, the settings, the result of a selection.

Formats `gradproof-list/1`, `gradproof-config/1` and `gradproof-selection/1`; their JSON Schemas are in `reports/`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from gradproof.core import EXIT_CODE, Effect, Exit, Expect, Kind, Layer, Outcome, Reach
from gradproof.documents import Shape

LIST, CONFIG, SELECTION = "gradproof-list/1", "gradproof-config/1", "gradproof-selection/1"
Text = Annotated[str, Field(min_length=1)]
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
