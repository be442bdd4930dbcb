"""What a row of a report is to a CI system: passed, failed, an error, or skipped. One table for every format.

A check that the profile does not ask for and that did not run is skipped, and so is one that is open and waived; one
that it asks for is an error, whatever kept it from running. Nothing that is not DISCHARGED is ever passed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gradproof.core import NO_WORKSPACE, Effect, Outcome, entry_of
from gradproof.render.consistency import excused_ids
from gradproof.render.fmt import one_line

Report = Mapping[str, Any]


class Standing(StrEnum):
    """Of one row, in a format that knows no more than these."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    SKIPPED = "skipped"


class Level(StrEnum):
    """Of one annotation."""

    ERROR = "error"
    WARNING = "warning"


FAILS = frozenset({Outcome.REFUTED, Outcome.HOLDS, Outcome.WEAK, Outcome.VACUOUS})
LOUD = FAILS | {Outcome.SPURIOUS, Outcome.ERROR}


@dataclass(frozen=True)
class Row:
    """A check of a report, or a criterion of its gate. `file` is the contract's, `line` and `col` start at 1."""

    id: str
    title: str
    standing: Standing
    level: Level | None
    outcome: str
    words: str
    seconds: float
    contract: str
    file: str
    line: int
    col: int


def standing_of(outcome: Outcome, effect: Effect, required: bool, waived: bool = False) -> Standing:
    """The standing of a check."""
    if effect is Effect.DISCHARGED:
        return Standing.PASSED
    if (outcome is Outcome.NOT_RUN and not required) or (waived and effect is Effect.OPEN):
        return Standing.SKIPPED
    return Standing.FAILED if outcome in FAILS else Standing.ERROR


def level_of(outcome: Outcome, standing: Standing) -> Level | None:
    """How loud an annotation is: none for what passed or was not asked for."""
    if standing in (Standing.PASSED, Standing.SKIPPED):
        return None
    return Level.ERROR if outcome in LOUD else Level.WARNING


def of_nobody(report: Report) -> bool:
    """Whether the packaged reference was judged because no workspace was found."""
    return NO_WORKSPACE in report["contract"]["warnings"]


def rows(report: Report) -> Iterator[Row]:
    """Every check of a report, then every criterion of its gate, and the verdict."""
    excused = excused_ids(report)
    for check in report["checks"]:
        yield _check(report, check, check["id"] in excused)
    yield from _gate(report)


def _check(report: Report, check: Mapping[str, Any], waived: bool) -> Row:
    outcome = Outcome(check["outcome"])
    standing = standing_of(outcome, Effect(check["effect"]), bool(check.get("required", True)), waived)
    words = f"{'waived: ' if waived else ''}{outcome}: {check['reason'] or check['meaning']}"
    if check["expect"] != "holds":
        words = f"{outcome}, expected {check['expect']}: {check['reason'] or check['meaning']}"
    place = _place(report, entry_of(check["id"]))
    level = level_of(outcome, standing)
    return Row(check["id"], one_line(check["title"]), standing, level, str(outcome), one_line(words),
               float(check["seconds"]), report["contract"]["id"], *place)  # fmt: skip


def _gate(report: Report) -> Iterator[Row]:
    gate, verdict = report["gate"] or {}, report["verdict"]
    name = gate.get("id", "gate")
    place = _place(report, name)
    for criterion in gate.get("criteria", []):
        good = bool(criterion["met"])
        yield _judged(f"{name}/{criterion['name']}", f"criterion {criterion['name']}", good, criterion["why"],
                      report, place)  # fmt: skip
    why = "; ".join(verdict["reasons"]) or verdict["exit"]
    yield _judged(f"{name}/verdict", f"the gate, profile {report['profile']}", bool(verdict["met"]), why, report, place)


def _judged(name: str, title: str, good: bool, why: str, report: Report, place: tuple[str, int, int]) -> Row:
    standing, level = (Standing.PASSED, None) if good else (Standing.FAILED, Level.ERROR)
    words = f"{'met' if good else 'not met'}: {why}"
    outcome = "met" if good else "not met"
    return Row(name, title, standing, level, outcome, one_line(words), 0.0, report["contract"]["id"], *place)


def _place(report: Report, name: str) -> tuple[str, int, int]:
    line, col = report["contract"]["places"].get(name, (1, 1))
    return report["contract"]["path"], line, col
