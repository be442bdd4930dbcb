"""The ratchet: nothing may be weaker than in the reports of the last release.

The comparison is that of `gradproof diff`. What became weaker makes its contract's verdict BROKEN, and what no order
decides makes it OPEN; both stand among the reasons, so that every format tells them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradproof.core.errors import GradproofError
from gradproof.core.outcome import EXIT_CODE, SEVERITY, Exit
from gradproof.report.build import contract_of

if TYPE_CHECKING:
    from gradproof.report.diff_rules import ChangeShape


def held(baseline: Path, reports: Sequence[dict[str, Any]], beside: Collection[str] = ()) -> list[dict[str, Any]]:
    """These reports, judged against a report.json or a folder of reports as well. Raises GradproofError GP481.

    `beside`: contracts that are there, whether one of the reports is about them or not.
    """
    from gradproof.report.build import write_json
    from gradproof.report.diff import difference

    known = {report["contract"]["id"] for report in reports}
    with _scratch() as folder:
        new = Path(folder) / "new"
        for report in reports:
            write_json(new / report["contract"]["id"] / "report.json", report)
        old = _asked(baseline, Path(folder) / "old", {*beside} - known)
        if old is None:
            return list(reports)
        found = difference(old, new)
    shared = [f"the baseline cannot be compared: {reason}" for reason in found.open]
    reasons: dict[str, list[tuple[Exit, str]]] = {name: [(Exit.OPEN, text) for text in shared] for name in known}
    for row in found.contracts:
        stated = [_stated(change) for change in row.changes if change.direction in ("weakened", "undecided")]
        for name in [row.contract] if row.contract in known else known:
            reasons[name] += stated
    return [_judged(report, reasons[report["contract"]["id"]]) for report in reports]


@contextmanager
def _scratch() -> Iterator[str]:
    """A folder that is gone afterwards. Raises GradproofError GP407."""
    try:
        made = tempfile.TemporaryDirectory()
    except OSError as error:
        found, expected = f"no folder for temporary files: {error}", "a folder that can be written to"
        raise GradproofError("GP407", found, expected, "name one in TMPDIR") from error
    with made as folder:
        yield folder


def _reports_at(baseline: Path) -> list[Path]:
    """The reports of a baseline.

    Raises GradproofError GP481 for a contract, a workspace or evidence: they say what is asked, or less.
    """
    folder = os.path.isdir(baseline)
    places = [baseline / "report.json", *sorted(baseline.glob("*/report.json"))] if folder else [baseline]
    workspace = folder and any(baseline.glob("proofs/*/contract.yaml"))
    held = [place for place in places if os.path.isfile(place)]
    if all(place.suffix == ".json" for place in places) and held and not workspace:
        return held
    expected = "a report.json, or a folder of reports, as gradproof verify wrote it"
    raise GradproofError("GP481", f"{baseline} is no report", expected, "keep the reports of a release, and name them")


def _asked(baseline: Path, folder: Path, others: Collection[str]) -> Path | None:
    """The baseline without the reports of these contracts, which nobody asks about; None where no other is left."""
    held = _reports_at(baseline)
    kept = [place for place in held if contract_of(place) not in others]
    if len(kept) == len(held):
        return baseline
    for number, place in enumerate(kept):
        (folder / str(number)).mkdir(parents=True)
        shutil.copy(place, folder / str(number) / "report.json")
    return folder if kept else None


def _stated(change: ChangeShape) -> tuple[Exit, str]:
    sides = f": {change.old or 'nothing'} -> {change.new or 'nothing'}"
    if change.direction == "weakened":
        return Exit.BROKEN, f"weaker than the baseline: {change.kind} {change.place}, {change.word}{sides}"
    return Exit.OPEN, f"not decided against the baseline: {change.kind} {change.place}, {change.word}{sides}"


def _judged(report: dict[str, Any], found: Sequence[tuple[Exit, str]]) -> dict[str, Any]:
    verdict = report["verdict"]
    exit_ = min([Exit(verdict["exit"]), *(e for e, _ in found)], key=SEVERITY.index)
    reasons = [*(text for _, text in found), *verdict["reasons"]]
    stated = {"exit": str(exit_), "code": EXIT_CODE[exit_], "met": exit_ is Exit.MET, "reasons": reasons}
    return {**report, "verdict": {**verdict, **stated}}
