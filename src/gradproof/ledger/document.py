"""The document of the ledger, format `gradproof-claims/1`; `reports/claims.schema.json` is made of it.

A document is believed after every verdict, every effect and every total follow again from the parts below them.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from gradproof.core import EXIT_CODE, Effect, Exit
from gradproof.documents import Shape, Tally
from gradproof.ledger import rules

CLAIMS = "gradproof-claims/1"
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
VerdictName = Literal[
    "PROVED for all inputs", "PROVED within a bound", "REFUTED", "MEASURED true", "MEASURED false", "NOT TESTABLE",
    "OPEN",
]  # fmt: skip
AnswerName = Literal[
    "proved for all inputs", "proved within a bound", "sampled", "counterexample", "contradicted by a proof",
    "contradicted by a sample", "figure inside", "figure outside", "computed so", "computed otherwise", "nothing",
]  # fmt: skip
EffectName = Literal["DISCHARGED", "BROKEN", "OPEN"]


class NamedBound(Shape):
    """A bound of a proof."""

    name: str
    value: int


class Named(Shape):
    """A check that a row names. `contrary`: its answer is the opposite of what its own contract expects.

    `red`: it can turn red, by a mutant that it must kill or because it must be refuted. `evidence`: sha256 of it.
    """

    id: str
    part: Literal["checks", "refuted_by", "contradicted_by"]
    contract: str
    outcome: str
    answer: AnswerName
    contrary: bool
    red: bool
    reason: str
    bounds: list[NamedBound]
    counterexample: str | None
    evidence: str | None
    again: str


class Figure(Shape):
    """A figure that a row names. `origin`: a study, the evidence of a check, a plan, or the claim's own arithmetic.

    `on`: the device, torch and day of a measurement, "" where nothing was measured.
    """

    origin: str
    place: str
    on: str
    answer: AnswerName
    value: str
    said: str
    reason: str
    red: bool
    again: str


class Row(Shape):
    """One claim. `counts`: it names a check or a figure that can turn red."""

    id: str
    source: str
    title: str
    claim: str
    form: str
    expect: VerdictName
    verdict: VerdictName
    effect: EffectName
    counts: bool
    reason: str
    contradiction: str | None
    why: str | None
    checks: list[Named]
    figures: list[Figure]

    @property
    def told(self) -> list[rules.Answer]:
        """What everything that the row names tells."""
        return [rules.Answer(name) for name in (*(c.answer for c in self.checks), *(f.answer for f in self.figures))]

    @model_validator(mode="after")
    def _consistent(self) -> Row:
        untestable = rules.Verdict(self.expect) is rules.Verdict.NOT_TESTABLE
        found = rules.Verdict.NOT_TESTABLE if untestable else rules.verdict(self.told)
        effect = rules.effect(rules.Verdict(self.expect), found, self.told, any(c.contrary for c in self.checks))
        if (self.verdict, self.effect) != (str(found), str(effect)):
            raise ValueError(f"{self.id}: {self.verdict}, {self.effect} does not follow from what it names")
        if self.counts != (any(c.red for c in self.checks) or any(f.red for f in self.figures)):
            raise ValueError(f"{self.id}: it counts by something that can turn red, and by nothing else")
        return self


class Totals(Shape):
    """`as_expected`, `broken` and `open` add up to `rows`. `counted`: rows with something that can turn red."""

    rows: Tally
    counted: Tally
    as_expected: Tally
    broken: Tally
    open: Tally
    verdicts: dict[VerdictName, Tally]


class Claims(Shape):
    """Every claim of the field with its verdict on the evidence at hand.

    History: 1, the first. `ledger` is the sha256 of the file that states the claims; it holds no verdict.
    """

    document: Literal["gradproof-claims/1"] = Field(alias="schema")
    gradproof: str
    made_at: str
    ledger: Digest
    sources: dict[str, str]
    exit: Literal["met", "broken", "open", "nothing"]
    code: int
    totals: Totals
    rows: list[Row]

    @model_validator(mode="after")
    def _consistent(self) -> Claims:
        if self.totals != totals(self.rows):
            raise ValueError("the totals do not count the rows")
        found = exit_of(self.rows)
        if (self.exit, self.code) != (str(found), EXIT_CODE[found]):
            raise ValueError("the exit code is not that of the rows")
        return self


def totals(rows: list[Row]) -> Totals:
    """The rows, counted."""
    effects = [row.effect for row in rows]
    found = [row.verdict for row in rows]
    names: tuple[VerdictName, ...] = get_args(VerdictName)
    return Totals(
        rows=len(rows),
        counted=sum(row.counts for row in rows),
        as_expected=effects.count("DISCHARGED"),
        broken=effects.count("BROKEN"),
        open=effects.count("OPEN"),
        verdicts={name: found.count(name) for name in names if name in found},
    )


def exit_of(rows: list[Row]) -> Exit:
    """BROKEN where a row is, else OPEN where a row is; nothing selected is not the same as everything as expected."""
    effects = {row.effect for row in rows}
    if not rows:
        return Exit.NOTHING
    if Effect.BROKEN in effects:
        return Exit.BROKEN
    return Exit.OPEN if Effect.OPEN in effects else Exit.MET
