"""Matrix cells tell what is proved of the contract's model, and apart from it what is proved of other subjects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import report_sample as sample
import step_bench

from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Layer
from gradproof.report import views
from gradproof.report.formats import html, markdown

Report = dict[str, Any]
TABLE = "gradproof.core.protocol:advance"


def with_table() -> Report:
    """A report in which one more proof reaches all inputs, of the protocol table alone."""
    report = sample.green()
    report["checks"].append(sample.check("KANI-GA-010", "smt", ["GA-INV-002"], subject=TABLE, reach="all inputs"))
    made = sample.judged(report)
    cell = made["obligations"][2]["cells"]["smt"]
    cell["beyond"] = [{"subject": TABLE, "reach": "all inputs"}]
    return made


def words(report: Report) -> str:
    return views.cell(report, report["obligations"][2], Layer.SMT).reach


def test_a_cell_says_how_far_the_model_is_proved_and_how_far_another_subject() -> None:
    assert words(with_table()) == f"proved, bounded; of {TABLE}: all inputs"


@pytest.mark.parametrize("render", [markdown.render, html.render])
def test_the_words_stand_in_every_page(render: Callable[[Report], str]) -> None:
    assert f"of {TABLE}: all inputs" in render(with_table())


def test_what_no_check_shows_is_not_said() -> None:
    report = with_table()
    report["checks"][-1]["reach"] = "bounded"
    assert words(report) == "proved, bounded"


def test_an_obligation_is_not_ranked_by_another_subject() -> None:
    rows = {title: ids for title, _, ids in views.strongest(with_table())}
    assert "GA-INV-002" not in rows["proved, all inputs"]
    assert "GA-INV-002" in rows["proved, bounded"]


def test_a_cell_that_no_check_of_its_model_carries_is_refused() -> None:
    report = with_table()
    for check in report["checks"]:
        if check["layer"] == "smt":
            check["subject"] = TABLE
    with pytest.raises(GradproofError, match=r"GA-INV-002 x smt reads DISCHARGED"):
        markdown.render(report)


def test_many_other_subjects_are_counted_by_their_reach() -> None:
    known = [{"subject": f"models.m:{i}", "reach": "sampled" if i == 3 else "all inputs"} for i in range(4)]
    assert views._further(known[:2]) == ["of models.m:0: all inputs", "of models.m:1: all inputs"]
    assert views._further(known) == ["of 3 other subjects: all inputs", "of 1 other subject: sampled"]


def test_the_first_row_of_a_step_has_the_seconds_of_the_run() -> None:
    """One run decides all obligations: a suite of them takes as long as it, and not no time."""
    found = step_bench.held()
    found.seconds = {"all": 4.25, "rounding": 1.5}
    assert [row.seconds for row in views.case_rows(found)] == [5.75] + [0.0] * (len(found.results) - 1)
