"""The ratchet: nothing may be weaker than in the reports of the last release.

The comparison is that of `gradproof diff`. What became weaker makes its contract's verdict BROKEN, and what no order
decides makes it OPEN; both stand among the reasons, so that every format tells them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradproof.core import EXIT_CODE, Exit, GradproofError
from gradproof.session import SEVERITY

if TYPE_CHECKING:
    from gradproof.diff.document import ChangeShape


def held(baseline: Path, reports: Sequence[dict[str, Any]], beside: Collection[str] = ()) -> list[dict[str, Any]]:
    """These reports, judged against a report.json or a folder of reports as well. Raises GradproofError GP481.

    `beside`: contracts that are there, whether one of the reports is about them or not.
    """
    from gradproof.diff.compared import difference
    from gradproof.report import write_json

    _reports_at(baseline)
    with tempfile.TemporaryDirectory() as folder:
        for report in reports:
            write_json(Path(folder) / report["contract"]["id"] / "report.json", report)
        found = difference(baseline, Path(folder))
    known = {report["contract"]["id"] for report in reports}
    shared = [f"the baseline cannot be compared: {reason}" for reason in found.open]
    reasons: dict[str, list[tuple[Exit, str]]] = {name: [(Exit.OPEN, text) for text in shared] for name in known}
    for row in found.contracts:
        if row.contract in beside and row.contract not in known:
            continue
        told = [_told(change) for change in row.changes if change.direction in ("weakened", "undecided")]
        for name in [row.contract] if row.contract in known else known:
            reasons[name] += told
    return [_judged(report, reasons[report["contract"]["id"]]) for report in reports]


def _reports_at(baseline: Path) -> None:
    """Raises GradproofError GP481 for a contract, a workspace or evidence: they say what is asked, or less."""
    places = [baseline / "report.json", *baseline.glob("*/report.json")] if baseline.is_dir() else [baseline]
    workspace = any(baseline.glob("proofs/*/contract.yaml"))
    if all(place.suffix == ".json" for place in places) and any(p.is_file() for p in places) and not workspace:
        return
    expected = "a report.json, or a folder of reports, as gradproof verify wrote it"
    raise GradproofError("GP481", f"{baseline} is no report", expected, "keep the reports of a release, and name them")


def _told(change: ChangeShape) -> tuple[Exit, str]:
    sides = f": {change.old or 'nothing'} -> {change.new or 'nothing'}"
    if change.direction == "weakened":
        return Exit.BROKEN, f"weaker than the baseline: {change.kind} {change.place}, {change.word}{sides}"
    return Exit.OPEN, f"not decided against the baseline: {change.kind} {change.place}, {change.word}{sides}"


def _judged(report: dict[str, Any], found: Sequence[tuple[Exit, str]]) -> dict[str, Any]:
    verdict = report["verdict"]
    exit_ = min([Exit(verdict["exit"]), *(e for e, _ in found)], key=SEVERITY.index)
    reasons = [*(text for _, text in found), *verdict["reasons"]]
    told = {"exit": str(exit_), "code": EXIT_CODE[exit_], "met": exit_ is Exit.MET, "reasons": reasons}
    return {**report, "verdict": {**verdict, **told}}
