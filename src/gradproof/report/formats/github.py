"""Reports as GitHub workflow commands, and as a step summary.

GitHub shows ten errors and ten warnings of a step, so the last one shown tells how many are left out; a summary is at
most 1 MiB. Source: GitHub, Workflow commands for GitHub Actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradproof.core.outcome import NO_WORKSPACE
from gradproof.report.consistency import Report, require
from gradproof.report.formats import markdown
from gradproof.report.formats.sarif import relative
from gradproof.report.views import CaseRow, Level, case_rows, of_nobody, rows

if TYPE_CHECKING:
    from gradproof.shadow.result import Verification

MOST = 10
SUMMARY_BYTES = 1 << 20
CUT = "\n\nThe summary is cut here: GitHub shows at most 1 MiB. The report file has all of it.\n"


def render(reports: Sequence[Report]) -> str:
    """One line an annotation, errors first; a notice where every gate is met.

    Before all of them a warning where no workspace was found, and the packaged reference was judged.
    """
    for report in reports:
        require(report)
    lines = [f"::warning title=gradproof::{_data(NO_WORKSPACE)}"] if any(map(of_nobody, reports)) else []
    names = ", ".join(report["contract"]["id"] for report in reports)
    return _annotations([row for report in reports for row in rows(report)], lines, f"the gate is met: {names}")


def of_step(verification: Verification) -> str:
    """The same of a step: an annotation at the line of each obligation that is refuted or open."""
    return _annotations(case_rows(verification), [], f"every obligation that was judged holds: {verification.subject}")


def _annotations(every: Sequence[CaseRow], lines: list[str], met: str) -> str:
    found = [row for row in every if row.level is not None]
    room = {Level.ERROR: MOST, Level.WARNING: MOST - len(lines)}
    for level, most in room.items():
        mine = [row for row in found if row.level is level]
        lines += [_line(row, 0) for row in mine[: most - 1]]
        lines += [_line(mine[most - 1], len(mine) - most)] if len(mine) >= most else []
    if not found:
        lines += [f"::notice title=gradproof::{_data(met)}"]
    return "\n".join(lines) + "\n"


def summary(reports: Sequence[Report]) -> str:
    """Markdown for GITHUB_STEP_SUMMARY, cut at its limit."""
    text = "\n".join(markdown.render(report) for report in reports)
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= SUMMARY_BYTES:
        return text
    return data[: SUMMARY_BYTES - len(CUT.encode())].decode("utf-8", "ignore") + CUT


def _line(row: CaseRow, more: int) -> str:
    words = f"{row.title}: {row.words}" + (f" (and {more} more, see the report)" if more else "")
    file = _property(relative(row.file))
    where = f"file={file},line={row.line},col={row.col},title={_property(row.id)}"
    return f"::{row.level} {where}::{_data(words)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
