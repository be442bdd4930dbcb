"""Reports for CI systems: JUnit XML, SARIF 2.1.0, GitHub's workflow commands and its step summary.

JUnit: one suite a contract, valid for the schemas of Jenkins' xunit plugin (junit-4, junit-10). No properties on a test
case, which that schema refuses, and no name twice, of which GitLab keeps only the first. The gate's criteria and its
verdict are cases of their own: a suite without a failure or an error is a gate that is met.

SARIF (OASIS, 2020): what is not discharged, and nothing else, for every result becomes an alert. One run for all
reports. Each result has one place, the entry of the contract, and a fingerprint of the contract and the check, so that
an alert keeps its identity when lines move.

GitHub shows ten errors and ten warnings of a step, so the last one shown tells how many are left out; a summary is at
most 1 MiB. Source: GitHub, Workflow commands for GitHub Actions.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from junitparser import Error, Failure, JUnitXml, Skipped, SystemErr, TestCase, TestSuite

from gradproof import __version__
from gradproof.core.outcome import NO_WORKSPACE, Exit
from gradproof.report.consistency import Report
from gradproof.report.views import CaseRow, Level, RowStatus, case_rows, of_nobody, rows

if TYPE_CHECKING:
    from gradproof.shadow.result import Verification

# -- JUnit.
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_RESULT = {RowStatus.FAILED: Failure, RowStatus.ERROR: Error, RowStatus.SKIPPED: Skipped}


def junit(reports: Sequence[Report]) -> str:
    """The XML document of these reports."""
    suites = []
    for report in reports:
        suite = _suite(f"{report['contract']['id']} {report['profile']}", report["generated_at"], rows(report))
        if of_nobody(report):
            suite.append(SystemErr(NO_WORKSPACE))  # type: ignore[no-untyped-call]
        suites.append(suite)
    return _junit_document(suites)


def junit_of_step(verification: Verification) -> str:
    """The same of a step: a case for each obligation."""
    now = datetime.now(UTC).isoformat()
    return _junit_document([_suite(f"gradproof {verification.subject}", now, case_rows(verification))])


def _suite(name: str, when: object, every: Iterable[CaseRow]) -> TestSuite:
    suite = TestSuite(_clean(name))
    suite.timestamp = str(when)[:19]
    for row in every:
        suite.add_testcase(_junit_case(row))
    for element in (suite._elem, *suite._elem):
        _seconds(element)
    return suite


def _junit_document(suites: Iterable[TestSuite]) -> str:
    document = JUnitXml("gradproof")
    for suite in suites:
        document.add_testsuite(suite)
    document.update_statistics()  # type: ignore[no-untyped-call]
    _seconds(document._elem)
    document._elem.attrib.pop("skipped", None)  # of suites only, in that schema
    text = document.tostring()  # type: ignore[no-untyped-call]
    return (text.decode("utf-8") if isinstance(text, bytes) else text) + "\n"


def _junit_case(row: CaseRow) -> TestCase:
    case = TestCase(_clean(row.id), _clean(f"{row.contract}.{row.id.partition('@')[0]}"), row.seconds)
    if row.status is not RowStatus.PASSED:
        result = _RESULT[row.status](_clean(row.words), row.outcome)
        result.text = _clean(f"{row.title}\n{row.words}\n{row.file}:{row.line}:{row.col}")
        if row.status is RowStatus.SKIPPED:
            result._elem.attrib.clear()  # the older schema has a skipped case say why in its text alone
        case.result = [result]
    return case


def _clean(text: str) -> str:
    """Without the characters that XML 1.0 cannot hold."""
    return _NO_XML.sub("\ufffd", text)


def _seconds(element: object) -> None:
    """Times with three digits, as the schema has them."""
    attributes = element.attrib  # type: ignore[attr-defined]
    if "time" in attributes:
        attributes["time"] = f"{float(attributes['time']):.3f}"


# -- SARIF.
SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
MOST_RESULTS = 25_000


def sarif(reports: Sequence[Report]) -> str:
    """The log of these reports. The first MOST_RESULTS results are kept, errors before warnings."""
    return _log([row for report in reports for row in rows(report)], [_invocation(report) for report in reports])


def sarif_of_step(verification: Verification) -> str:
    """The log of a step: an alert at the line of each obligation that is refuted or open."""
    crashed = verification.exit is Exit.CRASH
    invocation = {"executionSuccessful": not crashed, "exitCode": verification.code}
    return _log(case_rows(verification), [invocation | {"exitCodeDescription": str(verification.exit)}])


def _log(every: Sequence[CaseRow], invocations: list[dict[str, Any]]) -> str:
    found = [row for row in every if row.level is not None]
    kept = sorted(found, key=lambda row: str(row.level))[:MOST_RESULTS]
    titles = {row.id: row.title for row in kept}
    index = {name: i for i, name in enumerate(titles)}
    run = {
        "tool": {
            "driver": {
                "name": "gradproof",
                "version": __version__,
                "semanticVersion": __version__,
                "rules": [{"id": n, "shortDescription": {"text": titles[n] or n}} for n in titles],
            }
        },
        "invocations": invocations,
        "columnKind": "unicodeCodePoints",
        "results": [_result(row, index[row.id]) for row in kept],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1, ensure_ascii=False) + "\n"


def _invocation(report: Report) -> dict[str, Any]:
    stated = [{"level": "warning", "message": {"text": NO_WORKSPACE}}] if of_nobody(report) else []
    return {
        "executionSuccessful": report["run_state"] == "complete",
        "exitCode": report["verdict"]["code"],
        "exitCodeDescription": str(report["verdict"]["exit"]),
        "endTimeUtc": f"{str(report['generated_at'])[:19]}Z",
    } | ({"toolConfigurationNotifications": stated} if stated else {})


def _result(row: CaseRow, index: int) -> dict[str, Any]:
    file = relative(row.file)
    place = {
        "artifactLocation": {"uri": Path(file).as_uri() if Path(file).is_absolute() else quote(file)},
        "region": {"startLine": row.line, "startColumn": row.col},
    }
    print_ = hashlib.sha256(f"{row.contract}\0{row.id}".encode()).hexdigest()
    return {
        "ruleId": row.id,
        "ruleIndex": index,
        "level": str(row.level),
        "message": {"text": f"{row.title}: {row.words}"},
        "locations": [{"physicalLocation": place}],
        "partialFingerprints": {"primaryLocationLineHash": f"{print_[:32]}:1"},
    }


def relative(file: str) -> str:
    """A path below the working directory relative to it, with forward slashes; another one in full."""
    path, here = Path(file).absolute(), Path.cwd()
    return path.relative_to(here).as_posix() if path.is_relative_to(here) else path.as_posix()


# -- GitHub.
MOST = 10
SUMMARY_BYTES = 1 << 20
CUT = "\n\nThe summary is cut here: GitHub shows at most 1 MiB. The report file has all of it.\n"


def github(reports: Sequence[Report]) -> str:
    """One line an annotation, errors first; a notice where every gate is met.

    Before all of them a warning where no workspace was found, and the packaged reference was judged.
    """
    lines = [f"::warning title=gradproof::{_data(NO_WORKSPACE)}"] if any(map(of_nobody, reports)) else []
    names = ", ".join(report["contract"]["id"] for report in reports)
    return _annotations([row for report in reports for row in rows(report)], lines, f"the gate is met: {names}")


def github_of_step(verification: Verification) -> str:
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
    from gradproof.report.formats import markdown

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
