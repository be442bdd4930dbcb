"""Reports as GitHub workflow commands, and as a step summary.

GitHub shows ten errors and ten warnings of a step, so the last one shown tells how many are left out; a summary is at
most 1 MiB. Source: GitHub, Workflow commands for GitHub Actions.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradproof.render import markdown
from gradproof.render.consistency import require
from gradproof.render.sarif import relative
from gradproof.render.standing import Level, Report, Row, rows

MOST = 10
SUMMARY_BYTES = 1 << 20
CUT = "\n\nThe summary is cut here: GitHub shows at most 1 MiB. The report file has all of it.\n"


def render(reports: Sequence[Report]) -> str:
    """One line an annotation, errors first; a notice where every gate is met."""
    for report in reports:
        require(report)
    found = [row for report in reports for row in rows(report) if row.level is not None]
    lines = []
    for level in Level:
        mine = [row for row in found if row.level is level]
        lines += [_line(row, 0) for row in mine[: MOST - 1]]
        lines += [_line(mine[MOST - 1], len(mine) - MOST)] if len(mine) >= MOST else []
    if not lines:
        names = ", ".join(report["contract"]["id"] for report in reports)
        lines = [f"::notice title=gradproof::{_data(f'the gate is met: {names}')}"]
    return "\n".join(lines) + "\n"


def summary(reports: Sequence[Report]) -> str:
    """Markdown for GITHUB_STEP_SUMMARY, cut at its limit."""
    text = "\n".join(markdown.render(report) for report in reports)
    data = text.encode("utf-8")
    if len(data) <= SUMMARY_BYTES:
        return text
    return data[: SUMMARY_BYTES - len(CUT.encode())].decode("utf-8", "ignore") + CUT


def _line(row: Row, more: int) -> str:
    words = f"{row.title}: {row.words}" + (f" (and {more} more, see the report)" if more else "")
    file = _property(relative(row.file))
    where = f"file={file},line={row.line},col={row.col},title={_property(row.id)}"
    return f"::{row.level} {where}::{_data(words)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
