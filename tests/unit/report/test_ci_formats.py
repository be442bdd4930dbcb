"""JUnit, SARIF, GitHub and NDJSON: valid for other people's schemas, and never green where the gate is not."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import step_bench
import xmlschema
from report_sample import green, judged, partial, red

from gradproof.core.outcome import DECISION, MEANING, NO_WORKSPACE, Effect, Expect, Outcome
from gradproof.report.formats import ci
from gradproof.report.views import Level, RowStatus, level_of, rows, status_of
from gradproof.shadow.locations import Location
from gradproof.shadow.request import undecided
from gradproof.shadow.result import NAMES, Verification

DATA = Path(__file__).resolve().parents[2] / "data"
XSD = [xmlschema.XMLSchema(DATA / name) for name in ("junit-10.xsd", "junit-4.xsd")]
SARIF = json.loads((DATA / "sarif-2.1.0.schema.json").read_text(encoding="utf-8"))
SAMPLES = {"green": green, "red": red, "partial": partial}
Report = dict[str, Any]


def of_nobody(report: Report) -> Report:
    """The same report, of the packaged reference, where no workspace was found."""
    report["contract"]["warnings"] = [NO_WORKSPACE]
    return report


def every_outcome() -> Report:
    """A report with a check of every outcome, required and not, and texts that no format may take as its own."""
    report = green()
    rows = [c for c in report["checks"] if c["expect"] == "holds"]
    for i, (check, outcome) in enumerate(zip(rows, [*Outcome] * 2, strict=False)):
        check["outcome"], check["required"] = str(outcome), i < len(Outcome)
        check["fresh"] = outcome is not Outcome.NOT_RUN
        check["effect"], check["meaning"] = str(DECISION[Expect.HOLDS, outcome]), MEANING[outcome]
        check["reason"] = 'a,b:c%d <e> & "f" ]]> ::error::g \x00\x1b é\nnext line'
    return judged(report)


def cases(text: str) -> dict[str, str]:
    """The verdict of each test case of a JUnit document."""
    found = {}
    for case in ET.fromstring(text).iter("testcase"):
        name = case.attrib["name"]
        assert name not in found
        found[name] = case[0].tag if len(case) else "passed"
    return found


@pytest.mark.parametrize("name", SAMPLES)
def test_junit_is_valid_for_both_schemas(name: str) -> None:
    text = ci.junit([SAMPLES[name](), every_outcome()])
    assert NO_WORKSPACE not in text
    for made in (text, ci.junit([of_nobody(SAMPLES[name]())])):
        for schema in XSD:
            schema.validate(made)
    assert NO_WORKSPACE in made


@pytest.mark.parametrize("name", SAMPLES)
def test_junit_is_green_exactly_where_the_gate_is_met(name: str) -> None:
    report = SAMPLES[name]()
    bad = [v for v in cases(ci.junit([report])).values() if v in ("failure", "error")]
    assert (bad == []) is report["verdict"]["met"]


def test_junit_counts_what_it_shows() -> None:
    text = ci.junit([every_outcome()])
    suite = next(ET.fromstring(text).iter("testsuite"))
    found = list(cases(text).values())
    stated = {key: int(suite.attrib[key]) for key in ("tests", "failures", "errors", "skipped")}
    assert stated == {"tests": len(found), "failures": found.count("failure"), "errors": found.count("error"),
                    "skipped": found.count("skipped")}  # fmt: skip
    assert min(stated.values()) > 0


@pytest.mark.parametrize("name", SAMPLES)
def test_sarif_is_valid_and_holds_only_what_is_not_discharged(name: str) -> None:
    report = SAMPLES[name]()
    log = json.loads(ci.sarif([report]))
    jsonschema.Draft7Validator(SARIF, format_checker=jsonschema.FormatChecker()).validate(log)
    (run,) = log["runs"]
    assert (run["results"] == []) is report["verdict"]["met"]
    good = {c["id"] for c in report["checks"] if c["effect"] == "DISCHARGED"}
    assert good.isdisjoint(r["ruleId"] for r in run["results"])
    assert [run["tool"]["driver"]["rules"][r["ruleIndex"]]["id"] for r in run["results"]] == [
        r["ruleId"] for r in run["results"]
    ]


def test_sarif_of_every_outcome() -> None:
    log = json.loads(ci.sarif([every_outcome()]))
    jsonschema.Draft7Validator(SARIF).validate(log)
    results = log["runs"][0]["results"]
    prints = [r["partialFingerprints"]["primaryLocationLineHash"] for r in results]
    assert len(set(prints)) == len(prints) > 10
    assert {r["level"] for r in results} == {"error", "warning"}
    place = next(r for r in results if r["ruleId"] == "KANI-GA-001")["locations"][0]["physicalLocation"]
    assert place["region"] == {"startLine": 120, "startColumn": 5}
    assert place["artifactLocation"]["uri"] == "proofs/gradient-accumulation-kernel-v1/contract.yaml"


def test_sarif_keeps_errors_before_warnings_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ci, "MOST_RESULTS", 3)
    results = json.loads(ci.sarif([every_outcome()]))["runs"][0]["results"]
    assert [r["level"] for r in results] == ["error"] * 3


def test_sarif_where_no_workspace_was_found() -> None:
    log = json.loads(ci.sarif([of_nobody(green()), red()]))
    jsonschema.Draft7Validator(SARIF).validate(log)
    stated = [i.get("toolConfigurationNotifications", []) for i in log["runs"][0]["invocations"]]
    assert stated == [[{"level": "warning", "message": {"text": NO_WORKSPACE}}], []]


def of_step(outcome: Outcome) -> Verification:
    """A step of which one obligation has this outcome, at line 7, and a text that no format may take as its own."""
    found = step_bench.answering(outcome)
    result = found.results[1]
    result.location, result.reason = Location(str(Path.cwd() / "train.py"), 7, "step"), 'a,b:c%d <e> & "f" ::error::g'
    return found


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_step_is_green_for_ci_exactly_where_it_holds(outcome: Outcome) -> None:
    found = of_step(outcome)
    text = ci.junit_of_step(found)
    for schema in XSD:
        schema.validate(text)
    stated, good = cases(text), outcome is Outcome.HOLDS
    assert len(stated) == len(found.results)
    assert {name for name, word in stated.items() if word != "passed"} == (set() if good else {"GA-EQ-001"})
    log = json.loads(ci.sarif_of_step(found))
    jsonschema.Draft7Validator(SARIF, format_checker=jsonschema.FormatChecker()).validate(log)
    [run] = log["runs"]
    assert run["invocations"][0]["exitCode"] == found.code
    places = [r["locations"][0]["physicalLocation"] for r in run["results"]]
    assert [(p["artifactLocation"]["uri"], p["region"]["startLine"]) for p in places] == [("train.py", 7)] * (not good)
    assert [r["shortDescription"]["text"] for r in run["tool"]["driver"]["rules"]] == [NAMES["GA-EQ-001"]] * (not good)
    [line] = ci.github_of_step(found).splitlines()
    assert COMMAND.fullmatch(line)
    assert line.startswith("::notice ") == good
    assert ("file=train.py,line=7,col=1,title=GA-EQ-001::the gradient of the full batch: " in line) == (not good)


def test_what_a_step_leaves_open_is_never_green_for_ci() -> None:
    """Nothing judged is no success, and an obligation that may stay undecided is skipped."""
    found = of_step(Outcome.OPAQUE)
    found.allow_undecided = ["GA-EQ-001"]
    assert found.code == 0
    assert cases(ci.junit_of_step(found))["GA-EQ-001"] == "skipped"
    assert ci.github_of_step(found).startswith("::notice ")
    for nothing in (Verification("train.py:step", {}), undecided("train.py:step", {}, Outcome.UNKNOWN, "why")):
        nothing.allow_undecided = [result.obligation for result in nothing.results]
        assert nothing.code != 0
        assert cases(ci.junit_of_step(nothing))["verdict"] == "failure"
        assert ci.github_of_step(nothing).startswith("::error file=train.py,line=1,")
        assert json.loads(ci.sarif_of_step(nothing))["runs"][0]["results"][0]["ruleId"] == "verdict"


COMMAND = re.compile(r"::(error|warning|notice) [^\n:]*(?:%3A[^\n:]*)*::[^\r\n]*")


def test_annotations_are_one_line_each_ten_of_a_kind() -> None:
    report = every_outcome()
    lines = ci.github([report]).splitlines()
    assert all(COMMAND.fullmatch(line) for line in lines)
    kinds = [line.split()[0] for line in lines]
    levels = [r.level for r in rows(report)]
    assert levels.count(Level.ERROR) > ci.MOST
    assert kinds.count("::error") == ci.MOST
    assert f"(and {levels.count(Level.ERROR) - ci.MOST} more" in lines[ci.MOST - 1]
    assert kinds.count("::warning") == min(levels.count(Level.WARNING), ci.MOST)


def test_the_first_of_ten_warnings_says_that_no_workspace_was_found() -> None:
    first = f"::warning title=gradproof::{NO_WORKSPACE}"
    lines = ci.github([of_nobody(every_outcome())]).splitlines()
    assert lines[0] == first
    assert all(COMMAND.fullmatch(line) for line in lines)
    warnings = [row for row in rows(every_outcome()) if row.level is Level.WARNING]
    assert [line.split()[0] for line in lines].count("::warning") == min(len(warnings) + 1, ci.MOST)
    assert [line.split()[0] for line in ci.github([of_nobody(green())]).splitlines()] == ["::warning", "::notice"]


@pytest.mark.parametrize("name", SAMPLES)
def test_annotations_say_an_error_exactly_where_the_gate_is_not_met(name: str) -> None:
    report = SAMPLES[name]()
    assert ("::error" not in ci.github([report])) is report["verdict"]["met"]


def test_the_summary_is_cut_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ci.summary([green()])
    monkeypatch.setattr(ci, "SUMMARY_BYTES", 2000)
    short = ci.summary([green()])
    assert len(short.encode()) <= 2000 < len(whole.encode())
    assert short.endswith(ci.CUT)


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("expect", list(Expect))
@pytest.mark.parametrize("outcome", list(Outcome))
def test_nothing_passes_that_is_not_discharged(outcome: Outcome, expect: Expect, required: bool) -> None:
    effect = DECISION[expect, outcome]
    status = status_of(outcome, effect, required)
    assert (status is RowStatus.PASSED) is (effect is Effect.DISCHARGED)
    assert (status is RowStatus.SKIPPED) is (outcome is Outcome.NOT_RUN and not required)
    assert (level_of(outcome, status) is None) is (status in (RowStatus.PASSED, RowStatus.SKIPPED))


def test_the_mapping_of_the_table() -> None:
    """The verdict mapping that release managers know: refuted fails, inconclusive is an error."""
    stated = {o: status_of(o, DECISION[Expect.HOLDS, o], True) for o in Outcome}
    failed = {o for o, s in stated.items() if s is RowStatus.FAILED}
    assert failed == {Outcome.REFUTED, Outcome.WEAK, Outcome.VACUOUS}
    assert {o for o, s in stated.items() if s is RowStatus.PASSED} == {Outcome.HOLDS}
    warned = {o for o, s in stated.items() if level_of(o, s) is Level.WARNING}
    assert warned == {Outcome.BOUND_HIT, Outcome.UNKNOWN, Outcome.TIMEOUT, Outcome.OPAQUE, Outcome.OUTSIDE,
                      Outcome.NOT_RUN}  # fmt: skip
