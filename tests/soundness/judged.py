"""Everything that a test asks of one step."""

from __future__ import annotations

from tests.soundness.kit import Step
from tests.soundness.table import ANSWER, COMMAND, LABEL, documented, row_of


def complaints(step: Step) -> list[str]:
    """What is wrong with the label, with gradproof's answer, or with the table of answers."""
    row = row_of(step)
    kind, where = row.fault
    made = [contradiction] if (contradiction := row.found.contradicts(step)) else []
    if kind:
        made.append(f"{kind} of {where}: {row.answer.outcomes} {row.answer.reasons}")
    cells = documented().get(step.name, [])
    listed = (cells[LABEL], cells[ANSWER]) if cells else ()
    if listed != (step.words, row.answer.verdict):
        made.append(f"{step.words}, {row.answer.verdict}, and docs/soundness.md says {listed}: run {COMMAND}")
    return made
