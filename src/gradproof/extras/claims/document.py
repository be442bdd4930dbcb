"""The document of the ledger, format `gradproof-claims/1`; `reports/claims.schema.json` is made of it.

A document is believed after every verdict, every effect and every total follow again from the parts below them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from gradproof.core.outcome import EXIT_CODE, Effect, Exit, Outcome, Reach
from gradproof.core.schemas.base import Shape, Tally


# -- From evidence to the verdict on a claim of the field: two tables, and a short reading of them.
class Verdict(StrEnum):
    """What a row of the ledger says."""

    ALL = "PROVED for all inputs"
    BOUNDED = "PROVED within a bound"
    REFUTED = "REFUTED"
    TRUE = "MEASURED true"
    FALSE = "MEASURED false"
    NOT_TESTABLE = "NOT TESTABLE"
    OPEN = "OPEN"


class Part(StrEnum):
    """What a check does in a row; the names of the row's keys."""

    STATES = "checks"
    REFUTES = "refuted_by"
    CONTRADICTS = "contradicted_by"


class Answer(StrEnum):
    """What one check or figure tells of the claim."""

    PROVED_ALL = "proved for all inputs"
    PROVED_BOUNDED = "proved within a bound"
    SAMPLED = "sampled"
    COUNTEREXAMPLE = "counterexample"
    CONTRADICTED = "contradicted by a proof"
    SAMPLED_AGAINST = "contradicted by a sample"
    FIGURE_INSIDE = "figure inside"
    FIGURE_OUTSIDE = "figure outside"
    COMPUTED = "computed so"
    COMPUTED_OTHERWISE = "computed otherwise"
    NOTHING = "nothing"


_FOR = {
    Reach.ALL_INPUTS: Answer.PROVED_ALL,
    Reach.BOUNDED: Answer.PROVED_BOUNDED,
    Reach.SAMPLED: Answer.SAMPLED,
}
_AGAINST = {
    Reach.ALL_INPUTS: Answer.CONTRADICTED,
    Reach.BOUNDED: Answer.CONTRADICTED,
    Reach.SAMPLED: Answer.SAMPLED_AGAINST,
}
_NOTHING = dict.fromkeys(Reach, Answer.NOTHING)
_COUNTER = dict.fromkeys(Reach, Answer.COUNTEREXAMPLE)

ANSWER: Mapping[tuple[Part, Outcome], Mapping[Reach, Answer]] = {
    (part, outcome): _NOTHING for part in Part for outcome in Outcome
} | {
    (Part.STATES, Outcome.HOLDS): _FOR,
    (Part.STATES, Outcome.REFUTED): _COUNTER,
    (Part.REFUTES, Outcome.HOLDS): _FOR,
    (Part.REFUTES, Outcome.REFUTED): _COUNTER,
    (Part.CONTRADICTS, Outcome.HOLDS): _AGAINST,
}

AGAINST = {Answer.COUNTEREXAMPLE, Answer.CONTRADICTED, Answer.COMPUTED_OTHERWISE}
MEASURED_AGAINST = {Answer.SAMPLED_AGAINST, Answer.FIGURE_OUTSIDE}
MEASURED_FOR = {Answer.SAMPLED, Answer.COMPUTED}

Told = Collection[Answer]
VERDICTS: tuple[tuple[Verdict, Callable[[Told], bool]], ...] = (
    (Verdict.REFUTED, lambda told: any(a in AGAINST for a in told)),
    (Verdict.FALSE, lambda told: any(a in MEASURED_AGAINST for a in told)),
    (Verdict.OPEN, lambda told: not told or Answer.NOTHING in told),
    (Verdict.TRUE, lambda told: Answer.FIGURE_INSIDE in told or all(a in MEASURED_FOR for a in told)),
    (Verdict.BOUNDED, lambda told: Answer.PROVED_BOUNDED in told),
    (Verdict.ALL, lambda told: Answer.PROVED_ALL in told),
)

TRUTH: Mapping[Verdict, bool | None] = {
    Verdict.ALL: True,
    Verdict.BOUNDED: True,
    Verdict.TRUE: True,
    Verdict.REFUTED: False,
    Verdict.FALSE: False,
    Verdict.NOT_TESTABLE: None,
    Verdict.OPEN: None,
}
EXPECTED = tuple(v for v in Verdict if v is not Verdict.OPEN)


def answer(part: Part, outcome: Outcome, reach: Reach | None) -> Answer:
    """What a check tells. HOLDS without a reach tells nothing; a counterexample needs none."""
    told = ANSWER[part, outcome]
    if reach is None:
        return Answer.NOTHING if outcome is Outcome.HOLDS else told[Reach.SAMPLED]
    return told[reach]


def verdict(told: Told) -> Verdict:
    """The verdict on a claim that can be tested."""
    return next(name for name, applies in VERDICTS if applies(told))


def effect(expect: Verdict, found: Verdict, told: Told, contrary: bool) -> Effect:
    """Whether a row is as expected.

    BROKEN: the opposite was found, or a check answered the opposite of its own expectation (`contrary`). OPEN: nothing
    was found, more or less was proved than is expected, or something that the row names told nothing.
    """
    opposite = TRUTH[expect] is not None and TRUTH[found] is (not TRUTH[expect])
    if opposite or contrary:
        return Effect.BROKEN
    return Effect.OPEN if found is not expect or Answer.NOTHING in told else Effect.DISCHARGED


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
    def told(self) -> list[Answer]:
        """What everything that the row names tells."""
        return [Answer(name) for name in (*(c.answer for c in self.checks), *(f.answer for f in self.figures))]

    @model_validator(mode="after")
    def _consistent(self) -> Row:
        untestable = Verdict(self.expect) is Verdict.NOT_TESTABLE
        found = Verdict.NOT_TESTABLE if untestable else verdict(self.told)
        judged = effect(Verdict(self.expect), found, self.told, any(c.contrary for c in self.checks))
        if (self.verdict, self.effect) != (str(found), str(judged)):
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
