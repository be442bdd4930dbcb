"""What `gradproof merge --json` prints: format `gradproof-merge/1`, published as `reports/merge.schema.json`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from gradproof.core import EXIT_CODE, Exit, Outcome
from gradproof.documents import Shape

MERGE = "gradproof-merge/1"
Text = Annotated[str, Field(min_length=1)]


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
