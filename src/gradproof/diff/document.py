"""The result of a comparison, format `gradproof-diff/1`; its JSON Schema is `reports/diff.schema.json`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from gradproof.documents import Shape

DIFF = "gradproof-diff/1"
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Tally = Annotated[int, Field(ge=0)]
Way = Literal["weakened", "undecided", "strengthened", "neutral"]
Step = Literal["none", "patch", "minor", "major"]


class ChangeShape(Shape):
    """One difference. `of`: of what is claimed, or of what the evidence shows. Null stands for nothing."""

    kind: str
    place: str
    direction: Way
    word: str
    old: str | None
    new: str | None
    of: Literal["claim", "evidence"]


class VersionShape(Shape):
    """`needed` is what semver asks for the changes of claims, `raised` what happened; null where no X.Y.Z is read."""

    old: str
    new: str
    needed: Step
    raised: Step | Literal["lowered"] | None
    accordingly: bool | None


class ComparedShape(Shape):
    """One contract on both sides."""

    contract: str
    version: VersionShape
    changes: list[ChangeShape]


class SideShape(Shape):
    """What was compared: its place as it was given, and a digest of what was read there."""

    path: str
    kind: Literal["contract", "report", "evidence"]
    digest: Sha256


class Diff(Shape):
    """What changed between two contracts or two sets of evidence.

    Only `exit` met says that nothing is weaker. `open` are the reasons why something could not be compared. History:
    1, the first.
    """

    document: Literal["gradproof-diff/1"] = Field(alias="schema")
    gradproof: str
    old: SideShape
    new: SideShape
    exit: Literal["met", "broken", "open"]
    code: int
    open: list[str]
    contracts: list[ComparedShape]
    totals: dict[Way, Tally]

    @model_validator(mode="after")
    def _consistent(self) -> Diff:
        found = [change.direction for row in self.contracts for change in row.changes]
        if any(found.count(name) != count for name, count in self.totals.items()) or len(self.totals) != 4:
            raise ValueError("the totals do not count the changes")
        wanted = "broken" if "weakened" in found else "open" if "undecided" in found or self.open else "met"
        if self.exit != wanted or self.code != {"met": 0, "broken": 1, "open": 4}[wanted]:
            raise ValueError(f"the exit is {self.exit}, and the changes make it {wanted}")
        return self
