"""Everything that a test asks of one step."""

from __future__ import annotations

from tests.soundness.kit import Step
from tests.soundness.known import KNOWN
from tests.soundness.table import ANSWER, COMMAND, LABEL, documented, row_of


def complaints(step: Step) -> list[str]:
    """What is wrong with the label, with gradproof's answer, or with the lists of known answers."""
    row = row_of(step)
    kind, where = row.fault
    known = KNOWN.get(step.name, "")
    made = [contradiction] if (contradiction := row.found.contradicts(step)) else []
    if kind != known:
        words = f"{kind} of {where}" if kind else "a sound answer"
        made.append(f"{words}, and known.py lists {known or 'nothing'}: {row.answer.outcomes} {row.answer.reasons}")
    cells = documented().get(step.name, [])
    listed = (cells[LABEL], cells[ANSWER]) if cells else ()
    if listed != (step.words, row.answer.verdict):
        made.append(f"{step.words}, {row.answer.verdict}, and docs/soundness.md says {listed}: run {COMMAND}")
    return made
