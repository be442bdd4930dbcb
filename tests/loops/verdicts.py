"""What the verifier says of a loop, against what it should say.

Only a refutation counts as a kill, and only of the obligation that the mutant breaks, at a line that names the fault. A
crash, a time-out, a lost sight and an unknown are no kill, however likely it is that the mutant caused them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.loops.bugs import LoopMutant

RIGHT = "right line"
OTHER_LINE = "right obligation, other line"
OTHER = "other obligation"
MISSED = "MISSED (false proved)"
NO_ANSWER = "no answer"
PROVED = "proved"
FALSE_ALARM = "FALSE ALARM"
CRASH, TIMEOUT = "CRASH", "TIMEOUT"

WANTED = frozenset({RIGHT, PROVED})
ANSWERED = frozenset({RIGHT, OTHER_LINE, OTHER})
SIGN = {
    RIGHT: "+", OTHER_LINE: "line", OTHER: "obligation", MISSED: "**MISSED**", NO_ANSWER: "?", PROVED: "+",
    FALSE_ALARM: "**ALARM**",
}  # fmt: skip
UNREPORTED = "no reported loss was seen"
_OUTCOMES = {"refuted": "REFUTED", "opaque": "OPAQUE", "error": "ERROR", "unknown": "UNKNOWN"}


@dataclass(frozen=True, slots=True)
class Found:
    """One result of the verifier: the obligation, its outcome, the text of the blamed line, and the reason."""

    obligation: str
    outcome: str
    text: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back of one verification. `outcome` is the verifier's word, CRASH or TIMEOUT."""

    outcome: str
    results: tuple[Found, ...] = ()
    error: str = ""


@dataclass(slots=True)
class Row:
    """One cell of the sweep: a mutant, or a correct loop in one configuration, and its verdict."""

    loop: str
    name: str
    config: str
    mutant: bool
    expected: str
    verdict: str
    outcome: str
    found: list[dict[str, str]] = field(default_factory=list)
    error: str = ""

    @property
    def sign(self) -> str:
        """The cell's text in the matrix."""
        return SIGN[self.verdict]


def of_correct(answer: Answer) -> str:
    """Verdict on a loop that is correct: proved only when every obligation that applies holds."""
    if any(found.outcome == "REFUTED" for found in answer.results):
        return FALSE_ALARM
    held = [found.outcome == "HOLDS" or found.reason.startswith(UNREPORTED) for found in answer.results]
    return PROVED if held and all(held) and answer.outcome == "HOLDS" else NO_ANSWER


def of_mutant(mutant: LoopMutant, answer: Answer) -> str:
    """Verdict on a mutant.

    An `also` pair is as right an answer as the first. A mutant that no operator shows (`opaque`) must lose the sight
    at its line, or be refuted there; one in which PyTorch raises (`error`) must end with that error at its line. A
    normaliser that a user may have chosen (`unknown`) is undecided at its line.
    """
    outcome = _OUTCOMES[mutant.expected]
    kinds = {outcome, "REFUTED"} if mutant.expected in ("opaque", "unknown") else {outcome}
    hits = [found for found in answer.results if found.outcome in kinds]
    blames = ((mutant.obligation, mutant.line_text), *mutant.also)
    if not hits:
        return MISSED if answer.outcome == "HOLDS" else NO_ANSWER
    if any(found.obligation == name and text in found.text for found in hits for name, text in blames):
        return RIGHT
    if any(found.obligation == name for found in hits for name, _ in blames):
        return OTHER_LINE
    return OTHER


def row_of_mutant(mutant: LoopMutant, config: str, answer: Answer) -> Row:
    """The row of a mutant, with everything that was found."""
    expected = f"{_OUTCOMES[mutant.expected]} {mutant.obligation} at `{mutant.line_text}`"
    return _row(mutant.loop, mutant.name, config, True, expected, of_mutant(mutant, answer), answer)


def row_of_correct(loop: str, config: str, answer: Answer) -> Row:
    """The row of a correct loop."""
    return _row(loop, "correct", config, False, "every obligation HOLDS", of_correct(answer), answer)


def _row(loop: str, name: str, config: str, mutant: bool, expected: str, verdict: str, answer: Answer) -> Row:
    found = [
        {"obligation": f.obligation, "outcome": f.outcome, "text": f.text, "reason": f.reason}
        for f in answer.results
        if f.outcome != "HOLDS"
    ]
    return Row(loop, name, config, mutant, expected, verdict, answer.outcome, found, answer.error)


def as_answer(plain: dict[str, Any]) -> Answer:
    """An answer from the plain data that a worker sends."""
    return Answer(plain["outcome"], tuple(Found(**found) for found in plain["results"]), plain.get("error", ""))


def crashed(words: str) -> Answer:
    """The verifier ended without an answer."""
    return Answer(CRASH, (), words)


def timed_out(seconds: float) -> Answer:
    """The verifier did not answer in time."""
    return Answer(TIMEOUT, (), f"no answer in {seconds:g} s")


def ordered(rows: Sequence[Row]) -> list[Row]:
    """Rows in the order of their loops and names, whatever order they came in."""
    return sorted(rows, key=lambda row: (row.loop, row.mutant, row.name, row.config))
