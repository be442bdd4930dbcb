"""Reports as JUnit XML, one suite a contract: valid for the schemas of Jenkins' xunit plugin (junit-4, junit-10).

No properties on a test case, which that schema refuses, and no name twice, of which GitLab keeps only the first. The
gate's criteria and its verdict are cases of their own: a suite without a failure or an error is a gate that is met.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from junitparser import Error, Failure, JUnitXml, Skipped, SystemErr, TestCase, TestSuite

from gradproof.core.outcome import NO_WORKSPACE
from gradproof.report.consistency import Report
from gradproof.report.views import CaseRow, RowStatus, case_rows, of_nobody, rows

if TYPE_CHECKING:
    from gradproof.shadow.result import Verification

_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_RESULT = {RowStatus.FAILED: Failure, RowStatus.ERROR: Error, RowStatus.SKIPPED: Skipped}


def render(reports: Sequence[Report]) -> str:
    """The XML document of these reports."""
    suites = []
    for report in reports:
        suite = _suite(f"{report['contract']['id']} {report['profile']}", report["generated_at"], rows(report))
        if of_nobody(report):
            suite.append(SystemErr(NO_WORKSPACE))  # type: ignore[no-untyped-call]
        suites.append(suite)
    return _document(suites)


def of_step(verification: Verification) -> str:
    """The same of a step: a case for each obligation."""
    now = datetime.now(UTC).isoformat()
    return _document([_suite(f"gradproof {verification.subject}", now, case_rows(verification))])


def _suite(name: str, when: object, every: Iterable[CaseRow]) -> TestSuite:
    suite = TestSuite(_clean(name))
    suite.timestamp = str(when)[:19]
    for row in every:
        suite.add_testcase(_case(row))
    for element in (suite._elem, *suite._elem):
        _seconds(element)
    return suite


def _document(suites: Iterable[TestSuite]) -> str:
    document = JUnitXml("gradproof")
    for suite in suites:
        document.add_testsuite(suite)
    document.update_statistics()  # type: ignore[no-untyped-call]
    _seconds(document._elem)
    document._elem.attrib.pop("skipped", None)  # of suites only, in that schema
    text = document.tostring()  # type: ignore[no-untyped-call]
    return (text.decode("utf-8") if isinstance(text, bytes) else text) + "\n"


def _case(row: CaseRow) -> TestCase:
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
