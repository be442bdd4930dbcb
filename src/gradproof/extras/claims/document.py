"""The document of the ledger, format `gradproof-claims/1`; `reports/claims.schema.json` is made of it.

A document is believed after every verdict, every effect and every total follow again from the parts below them.

It is shown as Markdown, which a terminal draws, as one self-contained HTML page, and as JSON. What the ledger says is
escaped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Literal

from pydantic import Field, model_validator

from gradproof.core.outcome import EXIT_CODE, EXIT_MEANING, Effect, Exit, Outcome, Reach
from gradproof.core.schemas.base import DocumentModel, Sha256, Tally
from gradproof.report.text import bullets, compact, escape, grouped, plural, table, when


# -- From evidence to the verdict on a claim of the field: two tables, and a short reading of them.
class ClaimVerdict(StrEnum):
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


class ClaimAnswer(StrEnum):
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


PROVED = {Reach.ALL_INPUTS: ClaimAnswer.PROVED_ALL, Reach.BOUNDED: ClaimAnswer.PROVED_BOUNDED}
AGAINST = {ClaimAnswer.COUNTEREXAMPLE, ClaimAnswer.CONTRADICTED, ClaimAnswer.COMPUTED_OTHERWISE}
MEASURED_AGAINST = {ClaimAnswer.SAMPLED_AGAINST, ClaimAnswer.FIGURE_OUTSIDE}
MEASURED_FOR = {ClaimAnswer.SAMPLED, ClaimAnswer.COMPUTED}

Answers = Collection[ClaimAnswer]
VERDICTS: tuple[tuple[ClaimVerdict, Callable[[Answers], bool]], ...] = (
    (ClaimVerdict.REFUTED, lambda stated: any(a in AGAINST for a in stated)),
    (ClaimVerdict.FALSE, lambda stated: any(a in MEASURED_AGAINST for a in stated)),
    (ClaimVerdict.OPEN, lambda stated: not stated or ClaimAnswer.NOTHING in stated),
    (ClaimVerdict.TRUE, lambda stated: ClaimAnswer.FIGURE_INSIDE in stated or all(a in MEASURED_FOR for a in stated)),
    (ClaimVerdict.BOUNDED, lambda stated: ClaimAnswer.PROVED_BOUNDED in stated),
    (ClaimVerdict.ALL, lambda stated: ClaimAnswer.PROVED_ALL in stated),
)

TRUTH: Mapping[ClaimVerdict, bool] = {
    **dict.fromkeys((ClaimVerdict.ALL, ClaimVerdict.BOUNDED, ClaimVerdict.TRUE), True),
    **dict.fromkeys((ClaimVerdict.REFUTED, ClaimVerdict.FALSE), False),
}


def answer(part: Part, outcome: Outcome, reach: Reach | None) -> ClaimAnswer:
    """What a check tells. HOLDS without a reach tells nothing; a counterexample needs none."""
    if outcome is Outcome.REFUTED and part is not Part.CONTRADICTS:
        return ClaimAnswer.COUNTEREXAMPLE
    if outcome is not Outcome.HOLDS or reach is None:
        return ClaimAnswer.NOTHING
    if part is Part.CONTRADICTS:
        return ClaimAnswer.CONTRADICTED if reach in PROVED else ClaimAnswer.SAMPLED_AGAINST
    return PROVED.get(reach, ClaimAnswer.SAMPLED)


def verdict(stated: Answers) -> ClaimVerdict:
    """The verdict on a claim that can be tested."""
    return next(name for name, applies in VERDICTS if applies(stated))


def effect(expect: ClaimVerdict, found: ClaimVerdict, stated: Answers, contrary: bool) -> Effect:
    """Whether a row is as expected.

    BROKEN: the opposite was found, or a check answered the opposite of its own expectation (`contrary`). OPEN: nothing
    was found, more or less was proved than is expected, or something that the row names stated nothing.
    """
    opposite = {TRUTH.get(expect), TRUTH.get(found)} == {True, False}
    if opposite or contrary:
        return Effect.BROKEN
    return Effect.OPEN if found is not expect or ClaimAnswer.NOTHING in stated else Effect.DISCHARGED


CLAIMS = "gradproof-claims/1"


class NamedBound(DocumentModel):
    """A bound of a proof."""

    name: str
    value: int


class Named(DocumentModel):
    """A check that a row names. `contrary`: its answer is the opposite of what its own contract expects.

    `red`: it can turn red, by a mutant that it must kill or because it must be refuted. `evidence`: sha256 of it.
    """

    id: str
    part: Part
    contract: str
    outcome: Outcome
    answer: ClaimAnswer
    contrary: bool
    red: bool
    reason: str
    bounds: list[NamedBound]
    counterexample: str | None
    evidence: str | None
    again: str


class Figure(DocumentModel):
    """A figure that a row names. `origin`: a study, the evidence of a check, a plan, or the claim's own arithmetic.

    `on`: the device, torch and day of a measurement, "" where nothing was measured.
    """

    origin: str
    place: str
    on: str
    answer: ClaimAnswer
    value: str
    said: str
    reason: str
    red: bool
    again: str


class LedgerRow(DocumentModel):
    """One claim. `counts`: it names a check or a figure that can turn red."""

    id: str
    source: str
    title: str
    claim: str
    form: str
    expect: ClaimVerdict
    verdict: ClaimVerdict
    effect: Effect
    counts: bool
    reason: str
    contradiction: str | None
    why: str | None
    checks: list[Named]
    figures: list[Figure]

    @model_validator(mode="after")
    def _consistent(self) -> LedgerRow:
        found, judged, counts = concluded(self.expect, self.checks, self.figures)
        if (self.verdict, self.effect) != (found, judged):
            raise ValueError(f"{self.id}: {self.verdict}, {self.effect} does not follow from what it names")
        if self.counts != counts:
            raise ValueError(f"{self.id}: it counts by something that can turn red, and by nothing else")
        return self


def concluded(
    expect: ClaimVerdict, checks: Sequence[Named], figures: Sequence[Figure]
) -> tuple[ClaimVerdict, Effect, bool]:
    """The verdict on a row, its effect, and whether it counts."""
    named: list[Named | Figure] = [*checks, *figures]
    stated = [one.answer for one in named]
    found = ClaimVerdict.NOT_TESTABLE if expect is ClaimVerdict.NOT_TESTABLE else verdict(stated)
    made = effect(expect, found, stated, any(c.contrary for c in checks))
    return found, made, any(one.red for one in named)


class Totals(DocumentModel):
    """`as_expected`, `broken` and `open` add up to `rows`. `counted`: rows with something that can turn red."""

    rows: Tally
    counted: Tally
    as_expected: Tally
    broken: Tally
    open: Tally
    verdicts: dict[ClaimVerdict, Tally]


class Claims(DocumentModel):
    """Every claim of the field with its verdict on the stored evidence.

    History: 1, the first. `ledger` is the sha256 of the file that states the claims; it holds no verdict.
    """

    document: Literal["gradproof-claims/1"] = Field(alias="schema")
    gradproof: str
    made_at: str
    ledger: Sha256
    sources: dict[str, str]
    exit: Exit
    code: int
    totals: Totals
    rows: list[LedgerRow]

    @model_validator(mode="after")
    def _consistent(self) -> Claims:
        if self.totals != totals(self.rows):
            raise ValueError("the totals do not count the rows")
        found = exit_of(self.rows)
        if (self.exit, self.code) != (found, EXIT_CODE[found]):
            raise ValueError("the exit code is not that of the rows")
        return self


def totals(rows: list[LedgerRow]) -> Totals:
    """The rows, counted."""
    effects = [row.effect for row in rows]
    found = [row.verdict for row in rows]
    return Totals(
        rows=len(rows),
        counted=sum(row.counts for row in rows),
        as_expected=effects.count(Effect.DISCHARGED),
        broken=effects.count(Effect.BROKEN),
        open=effects.count(Effect.OPEN),
        verdicts={name: found.count(name) for name in ClaimVerdict if name in found},
    )


def exit_of(rows: list[LedgerRow]) -> Exit:
    """BROKEN where a row is, else OPEN where a row is; nothing selected is not the same as everything as expected."""
    effects = {row.effect for row in rows}
    if not rows:
        return Exit.NOTHING
    if Effect.BROKEN in effects:
        return Exit.BROKEN
    return Exit.OPEN if Effect.OPEN in effects else Exit.MET


# -- What a ledger looks like.
EFFECT = {"DISCHARGED": "as expected", "BROKEN": "NOT AS EXPECTED", "OPEN": "open"}
short = partial(compact, limit=160)


def as_json(made: Claims) -> str:
    """JSON text with a final newline, format gradproof-claims/1."""
    data = made.model_dump(mode="json", by_alias=True)
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def headline(made: Claims) -> str:
    """What the ledger comes to, in one line."""
    t = made.totals
    parts = [f"{t.as_expected} as expected", f"{t.broken} not as expected", f"{t.open} open"]
    counted = f"{t.counted} count: each names a check or a figure that can turn red"
    said = {"met": "every verdict is as expected", "broken": "a verdict is not as expected"}
    exit_ = said.get(made.exit, EXIT_MEANING[made.exit])
    return f"{plural(t.rows, 'claim')}: {', '.join(parts)}; {counted} (exit {made.code}: {exit_})"


def found(row: LedgerRow) -> Iterator[str]:
    """What was found beside the verdict: figures, bounds, counterexamples."""
    for figure in row.figures:
        yield f"{figure.value or 'no figure'} (claimed {figure.said})"
    if row.verdict == "PROVED within a bound":
        yield from dict.fromkeys(
            f"{b.name} = {b.value}" for c in row.checks if c.answer == "proved within a bound" for b in c.bounds
        )
    for check in row.checks:
        if check.counterexample is not None:
            yield f"counterexample of {check.id}: {check.counterexample}"


def ids(row: LedgerRow) -> list[str]:
    """Ids of the checks and origins of the figures, a shared head once."""
    return [*grouped(c.id for c in row.checks), *dict.fromkeys(f.origin for f in row.figures)]


def again(row: LedgerRow) -> list[str]:
    """The commands that decide the row again, each once."""
    return list(dict.fromkeys(command for command in (*(c.again for c in row.checks), *(f.again for f in row.figures))))


def _check(check: Named) -> str:
    part = {"checks": "", "refuted_by": ", expected to be refuted", "contradicted_by": ", which the claim excludes"}
    return f"{check.id} is {check.outcome}{part[check.part]}: {check.answer}"


def markdown(made: Claims, details: bool = True) -> str:
    """The ledger, a table for each source; with `details` what was found of each row, and its commands."""
    head = f"Made {when(made.made_at)} by gradproof {made.gradproof} from the stored evidence; no verdict is written."
    parts = ["# Claims of the field", escape(headline(made)), escape(head)]
    parts.append(table(("Verdict", "Claims"), [(v, n) for v, n in made.totals.verdicts.items()]))
    for rows in by_source(made):
        parts.append(f"## {escape(rows[0].title)}")
        lines = [
            (r.id, r.claim, _verdict(r), "; ".join(f.value for f in r.figures if f.value), ", ".join(ids(r)))
            for r in rows
        ]
        parts.append(table(("Id", "Claim", "Verdict", "Figure", "Checks"), lines))
        open_ = (f"{row.id}: {short(row.reason)}" for row in rows if row.reason)
        parts.append(bullets((line for row in rows for line in _below(row)) if details else open_))
    commands = [(r.id, "; ".join(again(r))) for r in made.rows if again(r)]
    known = table(("Id", "Commands"), commands) if details else "gradproof claims -k ID shows the commands of a row."
    return "\n\n".join([*parts, "## Run again", known]) + "\n"


def _verdict(row: LedgerRow) -> str:
    plain = row.effect == "DISCHARGED" or (row.verdict, row.effect) == ("OPEN", "OPEN")
    return row.verdict if plain else f"{row.verdict}, {EFFECT[row.effect]}"


def _below(row: LedgerRow) -> Iterator[str]:
    """A line of what stands behind a row."""
    words = [f"form: {row.form}", *found(row), *map(_check, row.checks)]
    for f in row.figures:
        words.append(f"{f.origin} at {f.place}: {f.answer}" + (f", measured on {f.on}" if f.on else ""))
    words += [f"because {row.contradiction}"] if row.contradiction else []
    words += [f"why: {row.why}"] if row.why else []
    words += [f"expected: {row.expect}; {short(row.reason)}"] if row.reason else []
    yield f"{row.id}. {'. '.join(words)}"


def by_source(made: Claims) -> list[Sequence[LedgerRow]]:
    """Rows of each source, in the ledger's order of sources."""
    groups = [[row for row in made.rows if row.source == name] for name in made.sources]
    return [group for group in groups if group]


def html(made: Claims) -> str:
    """One page: no script, no external resource, everything escaped."""
    from markupsafe import Markup

    from gradproof.report.formats.html import HERE, environment

    template = environment().get_template("claims.html.j2")
    return template.render(
        made=made,
        headline=headline(made),
        groups=by_source(made),
        tone={"met": "discharged", "broken": "broken"}.get(made.exit, "open"),
        found=found,
        ids=ids,
        again=again,
        words=EFFECT,
        short=short,
        css=Markup((HERE / "report.css").read_text(encoding="utf-8")),
    )


FORMATS = {"json": as_json, "md": markdown, "html": html}
