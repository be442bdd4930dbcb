"""The document of mutants by machine, `gradproof-mutation/1`: `reports/mutation.json`, made by `make mutation`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from gradproof.core.schemas.base import Count, DocumentModel, Sha256

MUTATION = "gradproof-mutation/1"
Some = Annotated[int, Field(ge=0)]


class MutatedFile(DocumentModel):
    """The mutants of one model: refuted by a check, otherwise not green, shown equivalent, or survivors."""

    file: str
    refuted: Some
    not_green: Some
    equivalent: Some
    survived: Some

    def words(self) -> str:
        """The row as a sentence."""
        total = self.refuted + self.not_green + self.equivalent + self.survived
        killed = f"{self.refuted} refuted, {self.not_green} not green"
        return f"{total} mutants: {killed}, {self.equivalent} equivalent, {self.survived} survived"


class KillingCheck(DocumentModel):
    """How many mutants of a file a check killed first, and its CPU seconds on the unmutated model."""

    file: str
    check: str
    first: Count
    seconds: Annotated[float, Field(ge=0)]


class KeptMutant(DocumentModel):
    """A mutant that no check kills. `why`: the bounds within which it is equivalent, or what tells it apart."""

    key: str
    file: str
    line: Count
    within: str
    operator: str
    diff: str
    answer: Literal["equivalent", "different", "undecided"]
    why: str


class Mutation(DocumentModel):
    """Every mutant of some models against the checks of the contracts. History: 1, the first."""

    document: Literal["gradproof-mutation/1"] = Field(alias="schema")
    sources: dict[str, Sha256]
    files: list[MutatedFile]
    checks: list[KillingCheck]
    kept: list[KeptMutant]

    @model_validator(mode="after")
    def _consistent(self) -> Mutation:
        for row in self.files:
            answers = [mutant.answer == "equivalent" for mutant in self.kept if mutant.file == row.file]
            if (sum(answers), len(answers) - sum(answers)) != (row.equivalent, row.survived):
                raise ValueError(f"{row.file}: the counts are not those of the mutants that are listed")
            killed = sum(check.first for check in self.checks if check.file == row.file)
            if killed != row.refuted + row.not_green:
                raise ValueError(f"{row.file}: the checks did not kill as many as are counted")
        return self
