"""From evidence to the verdict on a claim of the field: two tables, and a short reading of them.

ANSWER says what one named check tells of the claim, by the part that it plays in the row:

| part | the check | its HOLDS | its REFUTED |
|---|---|---|---|
| `checks` | states the claim | a proof of it, or a sample for it | a counterexample to it |
| `refuted_by` | states the claim, and is expected to be refuted | as above | a counterexample to it |
| `contradicted_by` | states what cannot hold beside the claim | the claim is false, proved or sampled | nothing |

Every other outcome (stale, absent, unknown, weak, not run) tells nothing. VERDICTS are tried from the top; the first
that applies is the verdict. What speaks against a claim comes before what is missing, and what is missing before what
speaks for it: a non-answer hides no counterexample, and nothing is proved or measured by half of what a row names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import StrEnum

from gradproof.core import Effect, Outcome, Reach


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
