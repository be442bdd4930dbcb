"""`gradproof diff` of reports: what was shown, and what is shown no more."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from report_sample import green as made, judged, partial

from gradproof.core.errors import GradproofError
from gradproof.report.diff import Diff, difference

Report = dict[str, Any]
GREEN = {False: json.dumps(made()), True: json.dumps(made("release", True))}
TURNED = {"weakened": "strengthened", "strengthened": "weakened", "neutral": "neutral", "undecided": "undecided"}
NAME, TEST = "KANI-GA-001", "FALSIFY-GA-001@cpu-fp32"


def green(release: bool = False) -> Report:
    report: Report = json.loads(GREEN[release])
    return report


def row(report: Report, name: str = NAME) -> Report:
    found: Report = next(c for c in report["checks"] if c["id"] == name)
    return found


def obligation(report: Report) -> Report:
    found: Report = next(o for o in report["obligations"] if o["id"] == "GA-EQ-001")
    return found


def waive(report: Report) -> None:
    own = {"obligation": "GA-EQ-001", "layer": None, "owner": "o", "reason": "r", "expires": "2030-01-31"}
    report["waivers"] = [{**own, "state": "unused", "cells": []}]


def without(report: Report, *names: str) -> None:
    report["checks"] = [c for c in report["checks"] if c["id"] not in names]


def drop_criterion(report: Report) -> None:
    report["gate"]["criteria"] = report["gate"]["criteria"][1:]


def uncover(report: Report) -> None:
    row(report)["covers"] = []


def optional(report: Report) -> None:
    obligation(report)["cells"]["crosshair"]["required"] = False


def not_run(report: Report) -> None:
    row(report).update(outcome="NOT_RUN", effect="OPEN", reach=None, fresh=False, covers=[], controls=[])


def lower_cell(report: Report) -> None:
    obligation(report)["cells"]["smt"]["reach"] = "sampled"


def second_thought(report: Report) -> None:
    row(report).update(assumptions=[*row(report)["assumptions"], "no overflow"])


# how a green report is made worse, and a kind of change that must be seen
WORSE: dict[str, tuple[Callable[[Report], Any], str]] = {
    "a worse outcome": (not_run, "outcome"),
    "a lower reach": (lambda r: row(r).update(reach="sampled"), "reach"),
    "a lower reach of a cell": (lower_cell, "reach"),
    "a dropped check": (lambda r: without(r, NAME), "check"),
    "a dropped obligation": (lambda r: r.update(obligations=r["obligations"][1:]), "obligation"),
    "a dropped criterion": (drop_criterion, "criterion"),
    "a dropped mutant": (lambda r: row(r)["mutants"].pop(), "mutant"),
    "a dropped mutant of the matrix": (lambda r: r["mutants"].pop(), "mutant"),
    "a dropped kill": (lambda r: row(r)["controls"].pop(), "kill"),
    "a dropped cover": (uncover, "cover"),
    "an added assumption": (second_thought, "assumption"),
    "a longer list of stubs": (lambda r: row(r)["stubs"].append("STUB-X"), "stub"),
    "a smaller bound": (lambda r: row(r)["bounds"][0].update(value=3), "bound"),
    "a looser tolerance": (lambda r: obligation(r)["tolerances"][0].update(value="1e-4"), "tolerance"),
    "a dropped tolerance": (lambda r: obligation(r)["tolerances"].pop(), "tolerance"),
    "a layer that is not required": (optional, "layer"),
    "expect flipped": (lambda r: row(r).update(expect="refuted", outcome="REFUTED", reach=None), "expect"),
    "a new waiver": (waive, "waiver"),
    "a dropped dependency": (lambda r: r["contract"].update(depends_on=[]), "dependency"),
    "a stale study": (lambda r: r["rounding"].update(status="stale"), "document"),
    "a gate that did not turn red": (lambda r: r["gate"]["falsification"].update(turned_red=None), "outcome"),
}


def base() -> Report:
    """A green report whose first proof has all that evidence may have."""
    report = green()
    row(report).update(covers=[{"name": "clip", "reached": True, "witness": {}}], mutants=["loss_sum", "tail_dropped"])
    row(report)["bounds"] = [{"name": "micro_batches", "value": 4, "reason": "r"}]
    return report


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports of one edit, which need not be what the judge would say."""
    monkeypatch.setattr("gradproof.report.consistency.require", lambda report: None)


def saved(path: Path, report: Report) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report), encoding="utf-8")
    return path


def stated(found: Diff) -> dict[tuple[str, str], int]:
    rows = [(c.kind, c.direction) for item in found.contracts for c in item.changes]
    return {key: rows.count(key) for key in rows}


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize("name", WORSE)
def test_what_is_worse_is_seen_and_its_reverse_is_better(tmp_path: Path, name: str) -> None:
    worsen, kind = WORSE[name]
    good, bad = base(), base()
    worsen(bad)
    one, other = saved(tmp_path / "a.json", good), saved(tmp_path / "b.json", bad)
    there, back = difference(one, other), difference(other, one)
    assert (kind, "weakened") in stated(there)
    assert (there.code, back.code) == (1, 0)
    assert {(k, TURNED[d]): n for (k, d), n in stated(there).items()} == stated(back)
    assert not any(direction == "strengthened" for _, direction in stated(there))


def test_a_green_report_and_a_partial_one(tmp_path: Path) -> None:
    """Nothing is waived: what was not run is worse, and a run that was cut says so."""
    one, other = saved(tmp_path / "a/report.json", green()), saved(tmp_path / "b/report.json", partial())
    found = difference(tmp_path / "a", other)
    assert found.code == 1
    assert {("run", "weakened"), ("outcome", "weakened")} <= set(stated(found))
    assert difference(one, tmp_path / "a").totals == dict.fromkeys(found.totals, 0)


def test_evidence_alone_asks_for_no_new_version(tmp_path: Path) -> None:
    bad = green()
    row(bad, TEST).update(outcome="TIMEOUT", reach=None)
    one, other = saved(tmp_path / "a.json", green()), saved(tmp_path / "b.json", judged(bad))
    found = difference(one, other)
    assert (found.code, found.contracts[0].version.needed) == (1, "none")


def test_what_says_nothing_is_not_compared(tmp_path: Path) -> None:
    running = {**green(), "run_state": "running"}
    one = saved(tmp_path / "a.json", green())
    for other in (running, green(True)):
        found = difference(one, saved(tmp_path / "b.json", other))
        assert (found.exit, len(found.open)) == ("open", 1)
        assert [row.changes for row in found.contracts] in ([], [[]])


def test_a_report_that_says_more_than_its_parts_is_refused(tmp_path: Path) -> None:
    lying = green()
    row(lying)["outcome"] = "TIMEOUT"
    one, other = saved(tmp_path / "a.json", green()), saved(tmp_path / "b.json", lying)
    with pytest.raises(GradproofError, match="GP481"):
        difference(one, other)


def test_a_folder_without_a_report_is_refused(tmp_path: Path) -> None:
    (tmp_path / "evidence").mkdir()
    with pytest.raises(GradproofError, match="no contract and no report"):
        difference(tmp_path, tmp_path)
