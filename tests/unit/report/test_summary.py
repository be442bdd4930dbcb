"""The short text of verify, report and gate: lines, words, and what it must never leave out."""

from __future__ import annotations

import copy
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import report_sample as sample
from rich.console import Console

from gradproof.core.errors import GradproofError
from gradproof.core.outcome import NEXT, NO_WORKSPACE, Outcome
from gradproof.report.formats import summary

Report = dict[str, Any]


def printed(reports: Sequence[Report], width: int = 100, terminal: bool = False, **given: Any) -> str:
    """What is printed, without colour."""
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, color_system=None)
    summary.render(reports, console, **given)
    return out.getvalue()


def several(made: Report, count: int) -> list[Report]:
    """The report under several names."""
    copies = [copy.deepcopy(made) for _ in range(count)]
    for i, report in enumerate(copies):
        report["contract"]["id"] = f"contract-number-{i}-of-a-long-name-v1"
    return copies


@pytest.mark.parametrize("count", [1, 3, 12])
@pytest.mark.parametrize("width", [80, 100])
def test_a_green_run_is_at_most_25_lines(count: int, width: int) -> None:
    page = Path("/somewhere/reports/index.html")
    old, new = several(sample.red(), count), several(sample.green(), count)
    text = printed(new, width, terminal=True, before=old, page=page)
    lines = text.splitlines()
    assert len(lines) <= 25, text
    assert text.startswith("GATE MET")
    assert "New since" in text
    assert ("more changes: --verbose shows them" in text) == (count > 1)
    assert lines[-1].endswith("index.html")


@pytest.mark.parametrize("made", [sample.red, sample.partial])
@pytest.mark.parametrize("count", [1, 3, 12])
def test_a_red_run_is_at_most_40_lines_and_verbose_has_all(made: Any, count: int) -> None:
    reports = several(made(), count)
    text = printed(reports)
    assert sum(-(-len(line) // 100) for line in text.splitlines()) <= 40, text
    assert text.startswith("GATE NOT MET")
    whole = printed(reports, most=None)
    assert "--verbose shows all" not in whole
    open_ = {c["id"]: c for c in reports[0]["checks"] if c["effect"] == "BROKEN"}
    assert all(f"{name} is {check['outcome']}" in whole for name, check in open_.items())


def test_no_line_is_wider_than_the_terminal_and_no_word_is_broken() -> None:
    for width in (40, 60, 80):
        text = printed([sample.red()], width, terminal=True)
        words = {word for line in printed([sample.red()]).splitlines() for word in line.split()}
        assert {word for line in text.splitlines() for word in line.split()} == words
        assert all(len(line) <= width or " " not in line.strip() for line in text.splitlines()), text
    assert all(line == line.rstrip() for line in printed([sample.red()]).splitlines())


def test_a_broken_check_stands_with_its_obligation_and_its_line() -> None:
    report = sample.red()
    check = next(c for c in report["checks"] if c["effect"] == "BROKEN")
    names = {ob["id"]: ob["property"] for ob in report["obligations"]}
    report["contract"]["places"][check["id"].partition("@")[0]] = [77, 3]
    text = printed([report])
    assert f"{check['obligations'][0]}, {names[check['obligations'][0]]}" in text
    assert f"{report['contract']['path']}:77: {check['id']} is {check['outcome']}" in text
    assert f"\nhelp: {NEXT[Outcome(check['outcome'])]}\n" in text


def test_the_worst_of_several_contracts_decides() -> None:
    text = printed([*several(sample.green(), 2), sample.red()])
    assert text.startswith("GATE NOT MET")
    assert "(exit 1)" in text.splitlines()[0]
    assert [line[2] for line in text.splitlines()[1:4]] == ["●", "●", "✕"]


def test_a_waiver_and_the_packaged_reference_are_never_left_out() -> None:
    report = sample.green()
    report["contract"]["warnings"] = [NO_WORKSPACE]
    assert NO_WORKSPACE in printed([report])
    assert "1 warning" in printed([report])
    row = {"obligation": "GA-EQ-001", "layer": "cuda", "owner": "me", "reason": "no GPU", "expires": "2030-01-01",
           "state": "in force", "cells": []}  # fmt: skip
    report["waivers"] = [row, row, row]
    text = printed([report])
    assert text.count("Waiver in force: GA-EQ-001 x cuda, me, until 2030-01-01: no GPU") == 2
    assert "and 1 more waivers" in text


def test_what_the_judge_says_beside_its_checks_is_said() -> None:
    report = sample.red()
    said = ["weaker than the baseline: bound K-1, smaller: 3 -> 2", "GA-EQ-001 x cpu: no check is planned for it"]
    report["verdict"]["reasons"] = [*said, *report["verdict"]["reasons"]]
    text = printed([report])
    assert all(words in text for words in said)


def test_a_report_that_contradicts_itself_is_refused_before_a_word() -> None:
    out = io.StringIO()
    report = sample.red()
    report["verdict"].update(met=True, exit="met", code=0)
    with pytest.raises(GradproofError):
        summary.render([sample.green(), report], Console(file=out))
    assert out.getvalue() == ""


def test_no_control_character_reaches_a_terminal() -> None:
    report, old = sample.red(), sample.red()
    nasty = "\x1b[2J\u202e"
    report["contract"]["id"] = old["contract"]["id"] = nasty
    report["checks"][0].update(title=nasty)
    old["checks"][0].update(id=f"K{nasty}")
    for check in report["checks"]:
        check["reason"] = nasty
    text = printed([report], before=[old], page=Path(nasty), terminal=True)
    assert "K\\x1b[2J" in text
    assert not {"\x1b", "\u202e"} & set(text)


def test_a_first_run_compares_with_nothing() -> None:
    assert "New since" not in printed([sample.green()])
    assert "New since 2" in printed([sample.green()], before=[sample.green()])
