"""Reports as SARIF 2.1.0 (OASIS, 2020): what is not discharged, and nothing else, for every result becomes an alert.

One run for all reports. Each result has one place, the entry of the contract, and a fingerprint of the contract and the
check, so that an alert keeps its identity when lines move.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from gradproof import __version__
from gradproof.core.outcome import NO_WORKSPACE, Exit
from gradproof.report.consistency import Report
from gradproof.report.views import CaseRow, case_rows, of_nobody, rows

if TYPE_CHECKING:
    from gradproof.shadow.result import Verification

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
MOST = 25_000


def render(reports: Sequence[Report]) -> str:
    """The log of these reports. The first MOST results are kept, errors before warnings."""
    return _log([row for report in reports for row in rows(report)], [_invocation(report) for report in reports])


def of_step(verification: Verification) -> str:
    """The log of a step: an alert at the line of each obligation that is refuted or open."""
    crashed = verification.exit is Exit.CRASH
    invocation = {"executionSuccessful": not crashed, "exitCode": verification.code}
    return _log(case_rows(verification), [invocation | {"exitCodeDescription": str(verification.exit)}])


def _log(every: Sequence[CaseRow], invocations: list[dict[str, Any]]) -> str:
    found = [row for row in every if row.level is not None]
    kept = sorted(found, key=lambda row: str(row.level))[:MOST]
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
